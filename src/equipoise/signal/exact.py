from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from ..core.errors import UserError
from .base import SAMPLE, Signal
from .factors_of_layer import Outer, Part, Place
from .fused import FusedCall, fused_calls, is_fused
from .hooks import Call, calls_of, refuse_batch_norm
from .layers import Layers
from .rules import Places, Rule, rule_of

_ROUNDING = 32  # units of the last place
_SELDOM = 4  # views from one look at the gradient to the next
_TOLERANCE = 0.05  # of the norm of a parameter's gradient: half precision differs by more than rounding


@dataclass
class Exact(Signal):
    """Every example's gradient, through the factors of its layers (ghost products); no gradient is made.

        <S, g_i> = sum over layers of sum_t b_it' S a_it

    Covers Linear, Conv1d, Conv2d, Embedding, LayerNorm and GroupNorm, tied weights included, and the linear maps inside
    LSTM, GRU, RNN and MultiheadAttention, which are repeated to find them. The first pass compares the sum over
    examples with what backward computed: a parameter for which they differ (a bare parameter, a layer without a rule,
    a weight used elsewhere too) is left out, and the log says so once. The order stays valid, it only sees less.

    The first dimension of every layer's input must be the examples. The view holds until the next pass begins.

    Reference: Wang et al., Data Shapley in One Training Run, ICLR 2025 (the products); Bu et al. 2022 (ghost norms).
    """

    def init_state(self) -> None:
        self.model: nn.Module | None = None
        self.passes: list[tuple[list[Part], int]] = []
        self.before = torch.zeros(0)

    @contextlib.contextmanager
    def watching(self, model: nn.Module, examples: int) -> Iterator[None]:
        if model is not self.model:
            refuse_batch_norm(model)
            self._lay_out(model)
            earlier = [None if p.grad is None else p.grad.detach().clone() for p in self.parameters]
        elif not self.passes:
            self.before = self._sample(self._gradients())
        with calls_of(self.layers) as calls, fused_calls(self.fused) as hidden:
            yield
        parts = self._parts(calls, hidden, examples)
        if model is not self.model:
            if self._leave_out_misfits(parts, earlier, examples):
                parts = self._parts(calls, hidden, examples)
            self.before = self._sample(earlier)
            self.model = model
        self.passes.append((parts, examples))

    def forget(self) -> None:
        self.passes = []

    @torch.no_grad()
    def view(self) -> Layers:
        examples = sum(count for _, count in self.passes)
        # backward divided by the number of examples in the batch: undone here.
        views = [
            Layers(parts, self.one.new_full((count,), float(examples)), self.dimension) for parts, count in self.passes
        ]
        self.passes = []
        view = views[0]
        for later in views[1:]:
            view = view.join(later)
        view.sample = (self._sample(self._gradients()) - self.before) * examples
        if not self.before.any():  # nothing had been accumulated
            view.summed = self._sums(view)
        return view

    def _sums(self, view: Layers) -> dict[Place, torch.Tensor]:
        """The gradients of the weights that are the sum over these examples and nothing else.

        A penalty, a hook on the gradient or half precision would make S drift, so one row of one layer is computed
        again every few views, of every layer in the first; a layer that fails once is not trusted any more.
        """
        known = [part for part in view.whole if isinstance(part, Outer) and part.weight in self.trusted]
        turn, rest = divmod(self.views, _SELDOM)
        self.views += 1
        doubted = known if self.views == 1 else known[turn % len(known) :][:1] if known and not rest else []
        for part in doubted:
            row, gradient = self.views % part.shape[3], self._gradient_at(part.weight)
            b, a = part.b[:, :, row].flatten(), part.a.flatten(0, 1)
            room = _ROUNDING * torch.finfo(self.dtype).eps * float(b.norm() * a.norm())
            if gradient is None or float((gradient.reshape(-1, a.shape[1])[row] - b @ a).norm()) > room:
                del self.trusted[part.weight]
        found = {part.weight: self._gradient_at(part.weight) for part in known if part.weight in self.trusted}
        return {place: g.reshape(-1) for place, g in found.items() if place is not None and g is not None}

    def _gradient_at(self, place: Place | None) -> torch.Tensor | None:
        gradient = self.trusted[place].grad if place in self.trusted else None
        return gradient.detach() if gradient is not None and gradient.dtype == self.dtype else None

    def _lay_out(self, model: nn.Module) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names, self.parameters = [name for name, _ in named], [p for _, p in named]
        self.place: dict[int, Place] = {}
        self.dimension = 0
        for p in self.parameters:
            self.place[id(p)] = (self.dimension, self.dimension + p.numel())
            self.dimension += p.numel()
        self.trusted: dict[Place | None, nn.Parameter] = {self.place[id(p)]: p for p in self.parameters}
        self.views = 0
        self.rules: dict[nn.Module, Rule] = {}
        for module in model.modules():
            rule = rule_of(module)
            if rule is not None and any(p.requires_grad for p in module.parameters(recurse=False)):
                self.rules[module] = rule
        self.layers = list(self.rules)
        self.fused = [m for m in model.modules() if is_fused(m) and any(p.requires_grad for p in m.parameters())]
        self.dtype = torch.float64 if self.parameters[0].dtype == torch.float64 else torch.float32
        self.one = torch.ones((), dtype=self.dtype, device=self.parameters[0].device)

    def _places(self, module: nn.Module) -> Places:
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        return self.place.get(id(weight)), self.place.get(id(bias))

    def _parts(self, calls: list[Call], hidden: list[FusedCall], examples: int) -> list[Part]:
        parts: list[Part] = []
        for call in calls:
            places = self._places(call.module)
            if len(call.a) == examples == call.shape[0] and any(places):
                part = call.part(self.rules[call.module], places, self.dtype)
                if part is not None:
                    parts.append(part)
        for use in hidden:
            parts += use.parts(lambda p: self.place.get(id(p)), examples, self.dtype)
        return parts

    @torch.no_grad()
    def _leave_out_misfits(self, parts: list[Part], earlier: list[torch.Tensor | None], examples: int) -> bool:
        seen = Layers(parts, self.one.new_ones(examples), self.dimension)
        vector = seen.vector(self.one.new_ones(examples))
        missed = []
        for name, p, old in zip(self.names, self.parameters, earlier, strict=True):
            if p.grad is None:
                continue
            true = (p.grad if old is None else p.grad - old).detach().to(self.dtype).reshape(-1)
            if float((vector[slice(*self.place[id(p)])] - true).norm()) > _TOLERANCE * float(true.norm()):
                missed.append((name, p.numel()))
                del self.place[id(p)]
        if not missed:
            return False
        share = sum(size for _, size in missed) / self.dimension
        names = ", ".join(name for name, _ in missed[:6]) + (", ..." if len(missed) > 6 else "")
        other = "--order.signal forward sees all of any model, --order.signal batch --order.group SIZE whole groups"
        if not self.place:
            raise UserError(f"no parameter lies in a layer whose factors are known ({names}): {other}")
        if self.context.rank == 0:
            logging.getLogger("equipoise").warning(
                "the order does not see %.1f %% of the parameters (%s): no rule for their layer; %s",
                100 * share,
                names,
                other,
            )
        return True

    def _gradients(self) -> list[torch.Tensor | None]:
        return [p.grad for p in self.parameters]

    def _sample(self, gradients: list[torch.Tensor | None]) -> torch.Tensor:
        """Evenly spaced coordinates of the gradient: enough for its norm, nothing beside a step."""
        if all(gradient is None for gradient in gradients):
            return self.one.new_zeros(1)
        stride, found = max(1, self.dimension // SAMPLE), []
        for p, gradient in zip(self.parameters, gradients, strict=True):
            if id(p) in self.place:
                count = -(-p.numel() // stride)
                found.append(self.one.new_zeros(count) if gradient is None else gradient.reshape(-1)[::stride])
        return torch.cat(found).to(self.dtype)
