"""Which parameters the factors of layers cover: checked against gradients of single examples, again and again."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..core.device import numbers
from ..core.errors import UserError
from .attribution import drawn_weights, gradient_of, resized
from .factor_view import FactorView
from .layer_factors import LayerFactors, Span
from .replay_view import ModelCall

_TOLERANCE = 0.05  # of the norm of a parameter's gradient: half precision differs by more than rounding
_ROUNDING = 32  # units in the last place: a spread below that of the mean gradient is not seen
_NEGLIGIBLE = 1e-3  # of the norm of the whole gradient: what is smaller decides no sign
_GROWN = 10.0  # a gradient that was negligible is checked again when it is so many times as large

Gradients = list[torch.Tensor | None]


class Coverage:
    """The trained parameters of a model, where they lie in the flat vector, and those that are left out.

    A parameter that fails in the first pass has no span. One that fails later keeps it and its factors become zeros:
    the layers of a run must stay the same.
    """

    def __init__(self, model: nn.Module, saved: dict[str, Any] | None):
        self.model = model
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.places: dict[str, Span] = {}
        self.dimension = 0
        for name, p in self.parameters.items():
            self.places[name] = Span(self.dimension, self.dimension + p.numel())
            self.dimension += p.numel()
        first = next(iter(self.parameters.values()))
        self.dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        self.one = torch.ones((), dtype=self.dtype, device=first.device)
        saved = saved or {"passes": 0, "checks": 0, "without": [], "muted": [], "unverified": {}}
        self.passes, self.checks = saved["passes"], saved["checks"]
        self.without, self.muted = list(saved["without"]), list(saved["muted"])
        self.unverified: dict[str, float] = dict(saved["unverified"])  # negligible at the last check: norms then
        self.unchecked: list[str] = []  # whose examples could not be told apart; until this is said
        self.said = False
        self.summed = False  # did the last check compare sums, in which a penalty counts?
        self.planned = False  # is the pass in progress one of those that are always checked?

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("passes", "checks", "without", "muted", "unverified")}

    @property
    def spans(self) -> dict[int, Span]:
        """By the id of a parameter: where it lies."""
        return {id(p): self.places[name] for name, p in self.parameters.items() if name not in self.without}

    def begin_pass(self) -> bool:
        """Should the calls of the model be kept during this pass?"""
        self.passes += 1
        self.planned = self.passes & (self.passes - 1) == 0  # 1, 2, 4, 8, ...
        return self.planned or bool(self.unverified)

    @property
    def asks(self) -> bool:
        """Should this pass be checked? Yes too where a gradient that said nothing is much larger now."""
        grown = (_norm(self.parameters[name]) > _GROWN * old for name, old in self.unverified.items())
        return self.planned or any(grown)

    @torch.no_grad()
    def check(
        self,
        layers: list[LayerFactors],
        modules: list[nn.Module],
        calls: list[ModelCall],
        earlier: Gradients | None,
        examples: int,
        eps: float,
    ) -> list[str]:
        """The parameters whose factors are not the gradients of single examples; they are left out from here on.

        modules: whose factors these are.
        earlier: the gradients before this pass. Where backward cannot be repeated, sums and shapes have to do.
        eps: the precision of the coarsest factors.
        """
        self.checks += 1
        self.summed = False
        view = FactorView(layers, self.one.new_ones(examples), self.dimension)
        used = [name for name in self.parameters if name not in (*self.without, *self.muted)]
        wrong, small = self._compare_examples(view, calls, used, eps)
        if small is None and earlier is None:
            return []
        other = resized(self.model, self.parameters, calls, modules) if examples > 1 else None
        turned = self._names_in([] if other is None else [m for m, fits in other.layers.items() if not fits])
        wrong = [name for name in used if name in wrong or name in turned]
        unusable = small is None or (other is not None and not other.outputs)
        if unusable or len(wrong) == len(used):  # a model that changes its inputs cannot be repeated either
            if earlier is None:
                return []
            self.summed = True
            ones = self.one.new_ones(examples)
            wrong, small = self._compare(view.vector(ones), self._sum_since(earlier), dict.fromkeys(used, 0.0))
            wrong = [name for name in used if name in wrong or name in turned]
            known = self._names_in([] if other is None else other.layers)
            told = {*wrong, *small, *known}
            self.unchecked = [name for name in used if name not in told and examples > 1]
        self.unverified = {name: _norm(self.parameters[name]) for name in small or () if name not in wrong}
        if self.passes == 1:
            self.without += wrong
        else:
            self.muted += wrong
        return wrong

    def _names_in(self, modules: Iterable[nn.Module]) -> set[str]:
        """The parameters of these modules."""
        inside = {id(p) for module in modules for p in module.parameters()}
        return {name for name, p in self.parameters.items() if id(p) in inside}

    def _compare_examples(
        self, view: FactorView, calls: list[ModelCall], used: list[str], eps: float
    ) -> tuple[list[str], list[str] | None]:
        """`_compare` for some of the examples; None where the model cannot be repeated."""
        found: set[str] = set()
        small: list[str] = []
        rounding = dict.fromkeys(used, 0.0)
        for weights in drawn_weights(view.items, self.checks, self.one):
            truth = gradient_of(self.model, self.parameters, calls, weights)
            if truth is None:
                return [], None
            wrong, small = self._compare(view.vector(weights), truth, rounding)
            found.update(wrong)
            # Every example is rounded on its own, so the error grows with the root of their number.
            unit = _ROUNDING * eps / view.items**0.5
            sizes = numbers(*(truth[slice(*self.places[name])].norm() for name in used))
            rounding = {name: unit * size for name, size in zip(used, sizes, strict=True)}
        return [name for name in used if name in found], [name for name in small if name not in found]

    def _compare(
        self, claimed: torch.Tensor, truth: torch.Tensor, rounding: dict[str, float]
    ) -> tuple[list[str], list[str]]:
        """The parameters in which two gradients differ, and those whose gradient is too small to tell."""
        places, apart = [slice(*self.places[name]) for name in rounding], claimed - truth
        # A device is waited for once.
        whole, *norms = numbers(truth.norm(), *(part[place].norm() for place in places for part in (truth, apart)))
        wrong, small, least = [], [], _NEGLIGIBLE * whole
        for (name, error), size, difference in zip(rounding.items(), norms[::2], norms[1::2], strict=True):
            if difference > _TOLERANCE * size + least + error:
                wrong.append(name)
            elif size <= least + error:
                small.append(name)
        return wrong, small

    def _sum_since(self, earlier: Gradients) -> torch.Tensor:
        """The gradient that backward has added in this pass."""
        truth = self.one.new_zeros(self.dimension)
        for (name, p), old in zip(self.parameters.items(), earlier, strict=True):
            if p.grad is not None:
                added = p.grad if old is None else p.grad - old
                truth[slice(*self.places[name])] = added.detach().reshape(-1).to(self.dtype)
        return truth

    def audible(self, layers: list[LayerFactors]) -> list[LayerFactors]:
        """The layers, with zeros in those whose parameters are left out."""
        if not self.muted:
            return layers
        muted = [self.places[name] for name in self.muted]
        return [_silent(factors) if _overlap(factors.spans(), muted) else factors for factors in layers]

    def report(self, wrong: list[str], rank: int) -> None:
        """One line about the parameters that were left out, and one about those that could not be checked.

        An error where none remain.
        """
        if self.unchecked and not self.said and rank == 0:
            logging.getLogger("equipoise").warning(
                "the order uses %s, but could not check that their layers' inputs have the examples first (the model "
                "is not called as a whole, or does not run on another number of examples): choose a batch size that no "
                "other dimension has, such as the number of tokens, or call the model itself with the examples first",
                _listed(self.unchecked),
            )
            self.said = True
        if not wrong:
            return
        share = sum(self.places[name].size for name in wrong) / self.dimension
        names = _listed(wrong)
        fix = (
            "--order.signal forward covers any model, --order.signal batch --order.group SIZE uses gradients of groups"
        )
        if len({*self.without, *self.muted}) == len(self.parameters):
            raise UserError(
                f"no parameter is left to order by ({names}): none is in a layer with a rule, or the loss has a term "
                f"that is no mean over examples, such as a penalty: {fix}"
            )
        if rank == 0:
            logging.getLogger("equipoise").warning(
                "the order ignores %.1f %% of the parameters (%s): no rule for their layer, or its input does not have "
                "the examples first%s; %s",
                100 * share,
                names,
                ", or the loss has a term that is no mean over examples, such as a penalty" if self.summed else "",
                fix,
            )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


def _norm(p: nn.Parameter) -> float:
    return 0.0 if p.grad is None else float(p.grad.norm())


def _overlap(some: list[Span], others: list[Span]) -> bool:
    return any(a.start < b.stop and b.start < a.stop for a in some for b in others)


def _silent(factors: LayerFactors) -> LayerFactors:
    """The same shapes with gradients of zero."""
    return factors.with_tensors({n: torch.zeros_like(t) for n, t in factors.tensors().items() if n != "a"})
