from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from ..core.device import numbers
from .base import SAMPLE, Signal
from .coverage import Coverage
from .factor_view import FactorView
from .fused import FusedCall, fused_calls, idle_maps, is_fused
from .hooks import LayerCall, layer_calls, refuse_batch_norm
from .layer_factors import LayerFactors, LinearFactors, Span
from .layer_rules import ParameterSpans, Rule, idle, rule_of
from .merged_calls import merged_calls
from .model_calls import model_calls
from .replay_view import ModelCall

_ROUNDING = 32  # units in the last place


@dataclass
class Exact(Signal):
    """Every example's gradient, through the factors of its layers (ghost products); no gradient is materialized.

        <S, g_i> = sum over layers of sum_t b_it' S a_it

    Covers Linear, Conv1d, Conv2d, Embedding, LayerNorm and GroupNorm, tied weights included, and the linear maps inside
    LSTM, GRU, RNN and MultiheadAttention, which are recomputed. In the passes 1, 2, 4, 8, ..., and when a gradient that
    was zero no longer is, gradients of some examples are computed by repeating the model. A parameter for
    which it differs (a bare parameter, a layer without a rule, one whose input does not have the examples first) is
    left out, and the log says so once. The order stays valid, it only uses less. A penalty in the loss belongs to no
    example.

    The first dimension of every layer's input must be the examples. The view is valid until the next pass begins.

    Reference: Wang et al., Data Shapley in One Training Run, ICLR 2025 (the products); Bu et al. 2022 (ghost norms).
    """

    STATE: ClassVar[tuple[str, ...]] = ("coverage_state",)

    def init_state(self) -> None:
        self.coverage: Coverage | None = None
        self.saved: dict[str, Any] | None = None  # of a coverage that was loaded, until the model is known
        self.passes: list[tuple[list[LayerFactors], int]] = []
        self.before: torch.Tensor | None = None  # a sample of the gradient that these passes were added to
        self.trusted: dict[Span | None, nn.Parameter] = {}  # whose gradient is the sum over the examples
        self.fused: list[nn.Module] = []

    @property
    def coverage_state(self) -> dict[str, Any] | None:
        return self.saved if self.coverage is None else self.coverage.state()

    @coverage_state.setter
    def coverage_state(self, state: dict[str, Any] | None) -> None:
        self.coverage, self.saved = None, state

    @contextlib.contextmanager
    def watching(self, model: nn.Module, examples: int) -> Iterator[None]:
        if self.coverage is None or model is not self.coverage.model:
            refuse_batch_norm(model)
            self._lay_out(model)
        coverage = self.coverage
        assert coverage is not None
        kept = coverage.begin_pass()
        earlier = [g if g is None else g.detach().clone() for g in self._gradients()] if coverage.planned else None
        if not self.passes:
            self.before = self._sample(self._gradients())
        whole: list[ModelCall] = []
        repeatable = model_calls(model, examples) if kept else contextlib.nullcontext(whole)
        with repeatable as whole, layer_calls(self.rules) as calls, fused_calls(self.fused) as fused:
            yield
        layers = self._factors(calls, fused, examples)
        if coverage.asks:
            wrong = coverage.check(
                layers, [*self.rules, *self.fused], whole, earlier, examples, self._precision(calls, fused)
            )
            coverage.report(wrong, self.context.rank)
            if wrong:
                self.spans = coverage.spans
                self.trusted = {} if coverage.muted else self.trusted
                layers = self._factors(calls, fused, examples)
                if earlier is not None and not self.passes:
                    self.before = self._sample(earlier)
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
        sample = self._sample(self._gradients())
        if sample is not None:
            view.sample = (sample if self.before is None else sample - self.before).mul_(examples)
        if self.before is None or not self.before.any():  # no gradient was accumulated before these passes
            view.summed = self._summed(view)
        return view

    def _summed(self, view: FactorView) -> dict[Span, torch.Tensor]:
        """The weights' gradients that are the sum over these examples and nothing else.

        A penalty, a hook on the gradient or half precision would make S drift. So one row of every layer is
        recomputed, another one in each view; after a failure no gradient is trusted any more.
        """
        linear = {f.weight: f for f in view.direct if isinstance(f, LinearFactors) and f.weight in self.trusted}
        gradients = {span: self.trusted[span].grad for span in linear}
        summed = {s: g.detach() for s, g in gradients.items() if s and g is not None and g.dtype == self.dtype}
        self.views += 1
        rows = [tensor for span, gradient in summed.items() for tensor in self._row(gradient, linear[span])]
        norms = numbers(*torch._foreach_norm(rows)) if rows else []
        least = _ROUNDING * torch.finfo(self.dtype).eps
        if any(apart > least * a * b for apart, a, b in zip(norms[::3], norms[1::3], norms[2::3], strict=True)):
            self.trusted = {}  # what changes one of them will change others
            return {}
        return summed

    def _row(self, gradient: torch.Tensor, factors: LinearFactors) -> tuple[torch.Tensor, ...]:
        """Of the row whose turn it is: the gradient without the sum over the examples, and the factors."""
        _, _, p, q = factors.shape
        row = self.views % q
        a, b = factors.inputs, factors.outputs[:, row]
        return torch.addmv(gradient.reshape(q, p)[row], a.T, b, alpha=-1), a, b

    def _lay_out(self, model: nn.Module) -> None:
        self.coverage = Coverage(model, self.saved)
        self.saved = None
        self.parameters = list(self.coverage.parameters.values())
        self.dimension, self.dtype, self.one = self.coverage.dimension, self.coverage.dtype, self.coverage.one
        self.spans = self.coverage.spans
        known = {} if self.coverage.muted else self.coverage.parameters
        self.trusted = {self.coverage.places[name]: p for name, p in known.items()}
        self.views = 0
        self.rules: dict[nn.Module, Rule] = {}
        for module in model.modules():
            rule = rule_of(module)
            if rule is not None and any(p.requires_grad for p in module.parameters(recurse=False)):
                self.rules[module] = rule
        self.fused = [m for m in model.modules() if is_fused(m) and any(p.requires_grad for p in m.parameters())]

    def _spans_of(self, module: nn.Module) -> ParameterSpans:
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        return self.spans.get(id(weight)), self.spans.get(id(bias))

    def _factors(self, calls: list[LayerCall], fused: list[FusedCall], examples: int) -> list[LayerFactors]:
        """In the order of the model's layers: one each, however often this pass went through it, zeros if it did not.

        Workers exchange factors by their place in this list.
        """
        assert self.coverage is not None
        of_layer: dict[nn.Module, list[LayerFactors]] = {module: [] for module in (*self.rules, *self.fused)}
        called = {call.module for call in calls} | {call.module for call in fused}
        for call in calls:
            spans = self._spans_of(call.module)
            if call.a.shape[:1] == call.shape[:1] == (examples,) and any(spans):
                factors = call.factors(self.rules[call.module], spans, self.dtype)
                if factors is not None:
                    of_layer[call.module].append(factors)
        for fused_call in fused:
            of_layer[fused_call.module] += fused_call.factors(self._span_of, examples, self.dtype)
        for module in of_layer.keys() - called:
            if module in self.rules:
                spans = self._spans_of(module)
                of_layer[module] += [idle(module, spans, examples, self.one)] if any(spans) else []
            else:
                of_layer[module] += idle_maps(module, self._span_of, examples, self.one)
        return self.coverage.audible([factors for several in of_layer.values() for factors in merged_calls(several)])

    def _precision(self, calls: list[LayerCall], fused: list[FusedCall]) -> float:
        """The unit in the last place of the coarsest gradient."""
        gradients = [call.b for call in calls] + [b for call in fused for b in call.b]
        units = [torch.finfo(b.dtype).eps for b in gradients if b is not None]
        # TensorFloat-32, which convolutions use by default, keeps 10 bits.
        return max([2.0**-10] * self.one.is_cuda + [torch.finfo(self.dtype).eps, *units])

    def _span_of(self, parameter: Any) -> Span | None:
        return self.spans.get(id(parameter))

    def _gradients(self) -> list[torch.Tensor | None]:
        return [p.grad for p in self.parameters]

    @torch.no_grad()
    def _sample(self, gradients: list[torch.Tensor | None]) -> torch.Tensor | None:
        """Evenly spaced coordinates of the gradient: enough to estimate its norm, at no cost beside a step."""
        if all(gradient is None for gradient in gradients):
            return None
        stride, samples = max(1, self.dimension // SAMPLE), []
        for p, gradient in zip(self.parameters, gradients, strict=True):
            if id(p) in self.spans:
                count = -(-p.numel() // stride)
                samples.append(self.one.new_zeros(count) if gradient is None else gradient.reshape(-1)[::stride])
        return torch.cat(samples).to(self.dtype)
