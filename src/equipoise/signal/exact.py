from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from ..core.errors import UserError
from .base import SAMPLE, Signal
from .factor_view import FactorView
from .fused import FusedCall, fused_calls, is_fused
from .hooks import LayerCall, layer_calls, refuse_batch_norm
from .layer_factors import LayerFactors, LinearFactors, Span
from .layer_rules import ParameterSpans, Rule, rule_of

_ROUNDING = 32  # units in the last place
_CHECK_EVERY = 4  # views between two checks of a gradient
_TOLERANCE = 0.05  # of the norm of a parameter's gradient: half precision differs by more than rounding


@dataclass
class Exact(Signal):
    """Every example's gradient, through the factors of its layers (ghost products); no gradient is materialized.

        <S, g_i> = sum over layers of sum_t b_it' S a_it

    Covers Linear, Conv1d, Conv2d, Embedding, LayerNorm and GroupNorm, tied weights included, and the linear maps inside
    LSTM, GRU, RNN and MultiheadAttention, which are recomputed. The first pass compares the sum over examples with the
    gradient that backward computed: a parameter for which they differ (a bare parameter, a layer without a rule, a
    weight that is used elsewhere too) is left out, and the log says so once. The order stays valid, it only uses less.

    The first dimension of every layer's input must be the examples. The view is valid until the next pass begins.

    Reference: Wang et al., Data Shapley in One Training Run, ICLR 2025 (the products); Bu et al. 2022 (ghost norms).
    """

    def init_state(self) -> None:
        self.model: nn.Module | None = None
        self.passes: list[tuple[list[LayerFactors], int]] = []
        self.before = torch.zeros(0)

    @contextlib.contextmanager
    def watching(self, model: nn.Module, examples: int) -> Iterator[None]:
        if model is not self.model:
            refuse_batch_norm(model)
            self._lay_out(model)
            earlier = [None if p.grad is None else p.grad.detach().clone() for p in self.parameters]
        elif not self.passes:
            self.before = self._sample(self._gradients())
        with layer_calls(self.rules) as calls, fused_calls(self.fused) as fused:
            yield
        layers = self._factors(calls, fused, examples)
        if model is not self.model:
            if self._leave_out_mismatches(layers, earlier, examples):
                layers = self._factors(calls, fused, examples)
            self.before = self._sample(earlier)
            self.model = model
        self.passes.append((layers, examples))

    def forget(self) -> None:
        self.passes = []

    @torch.no_grad()
    def view(self) -> FactorView:
        examples = sum(count for _, count in self.passes)
        # backward divided by the number of examples in the batch: undone here.
        views = [
            FactorView(layers, self.one.new_full((count,), float(examples)), self.dimension)
            for layers, count in self.passes
        ]
        self.passes = []
        view = views[0]
        for later in views[1:]:
            view = view.join(later)
        view.sample = (self._sample(self._gradients()) - self.before) * examples
        if not self.before.any():  # no gradient was accumulated before these passes
            view.summed = self._summed(view)
        return view

    def _summed(self, view: FactorView) -> dict[Span, torch.Tensor]:
        """The weights' gradients that are the sum over these examples and nothing else.

        A penalty, a hook on the gradient or half precision would make S drift. So one row of one layer is recomputed
        every few views, and of every layer in the first view; a layer that fails once is not trusted any more.
        """
        known = [f for f in view.direct if isinstance(f, LinearFactors) and f.weight in self.trusted]
        turn, rest = divmod(self.views, _CHECK_EVERY)
        self.views += 1
        checked = known if self.views == 1 else known[turn % len(known) :][:1] if known and not rest else []
        for factors in checked:
            row, gradient = self.views % factors.shape[3], self._gradient_at(factors.weight)
            b, a = factors.b[:, :, row].flatten(), factors.a.flatten(0, 1)
            tolerance = _ROUNDING * torch.finfo(self.dtype).eps * float(b.norm() * a.norm())
            if gradient is None or float((gradient.reshape(-1, a.shape[1])[row] - b @ a).norm()) > tolerance:
                del self.trusted[factors.weight]
        summed = {}
        for factors in known:
            gradient = self._gradient_at(factors.weight)
            if factors.weight is not None and gradient is not None:
                summed[factors.weight] = gradient.reshape(-1)
        return summed

    def _gradient_at(self, span: Span | None) -> torch.Tensor | None:
        gradient = self.trusted[span].grad if span in self.trusted else None
        return gradient.detach() if gradient is not None and gradient.dtype == self.dtype else None

    def _lay_out(self, model: nn.Module) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names, self.parameters = [name for name, _ in named], [p for _, p in named]
        self.spans: dict[int, Span] = {}  # id of a parameter -> where it lies in the flat vector
        self.dimension = 0
        for p in self.parameters:
            self.spans[id(p)] = Span(self.dimension, self.dimension + p.numel())
            self.dimension += p.numel()
        self.trusted: dict[Span | None, nn.Parameter] = {self.spans[id(p)]: p for p in self.parameters}
        self.views = 0
        self.rules: dict[nn.Module, Rule] = {}
        for module in model.modules():
            rule = rule_of(module)
            if rule is not None and any(p.requires_grad for p in module.parameters(recurse=False)):
                self.rules[module] = rule
        self.fused = [m for m in model.modules() if is_fused(m) and any(p.requires_grad for p in m.parameters())]
        self.dtype = torch.float64 if self.parameters[0].dtype == torch.float64 else torch.float32
        self.one = torch.ones((), dtype=self.dtype, device=self.parameters[0].device)

    def _spans_of(self, module: nn.Module) -> ParameterSpans:
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        return self.spans.get(id(weight)), self.spans.get(id(bias))

    def _factors(self, calls: list[LayerCall], fused: list[FusedCall], examples: int) -> list[LayerFactors]:
        layers: list[LayerFactors] = []
        for call in calls:
            spans = self._spans_of(call.module)
            if len(call.a) == examples == call.shape[0] and any(spans):
                factors = call.factors(self.rules[call.module], spans, self.dtype)
                if factors is not None:
                    layers.append(factors)
        for fused_call in fused:
            layers += fused_call.factors(lambda p: self.spans.get(id(p)), examples, self.dtype)
        return layers

    @torch.no_grad()
    def _leave_out_mismatches(
        self, layers: list[LayerFactors], earlier: list[torch.Tensor | None], examples: int
    ) -> bool:
        """Drop the parameters whose gradient is not the sum over the examples; True if there are any."""
        view = FactorView(layers, self.one.new_ones(examples), self.dimension)
        vector = view.vector(self.one.new_ones(examples))
        missed = []
        for name, p, old in zip(self.names, self.parameters, earlier, strict=True):
            if p.grad is None:
                continue
            true = (p.grad if old is None else p.grad - old).detach().to(self.dtype).reshape(-1)
            if float((vector[slice(*self.spans[id(p)])] - true).norm()) > _TOLERANCE * float(true.norm()):
                missed.append((name, p.numel()))
                del self.spans[id(p)]
        if not missed:
            return False
        share = sum(size for _, size in missed) / self.dimension
        names = ", ".join(name for name, _ in missed[:6]) + (", ..." if len(missed) > 6 else "")
        fix = (
            "--order.signal forward covers any model, --order.signal batch --order.group SIZE uses gradients of groups"
        )
        if not self.spans:
            raise UserError(f"no parameter is in a layer with a rule ({names}): {fix}")
        if self.context.rank == 0:
            logging.getLogger("equipoise").warning(
                "the order ignores %.1f %% of the parameters (%s): no rule for their layer; %s",
                100 * share,
                names,
                fix,
            )
        return True

    def _gradients(self) -> list[torch.Tensor | None]:
        return [p.grad for p in self.parameters]

    def _sample(self, gradients: list[torch.Tensor | None]) -> torch.Tensor:
        """Evenly spaced coordinates of the gradient: enough to estimate its norm, at no cost beside a step."""
        if all(gradient is None for gradient in gradients):
            return self.one.new_zeros(1)
        stride, samples = max(1, self.dimension // SAMPLE), []
        for p, gradient in zip(self.parameters, gradients, strict=True):
            if id(p) in self.spans:
                count = -(-p.numel() // stride)
                samples.append(self.one.new_zeros(count) if gradient is None else gradient.reshape(-1)[::stride])
        return torch.cat(samples).to(self.dtype)
