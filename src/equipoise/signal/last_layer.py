from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from ..core.errors import UserError
from ..core.method import option
from .base import SAMPLE, GradientView, Signal
from .factor_view import FactorView, strategy_costs
from .hooks import LayerCall, layer_calls, refuse_batch_norm
from .layer_factors import LinearFactors, Span
from .layer_rules import linear, rule_of
from .projection import KroneckerSketch
from .rows import Rows


@dataclass
class LastLayer(Signal):
    """The gradient of the last linear layer alone: exact for it, blind to the other layers, and nearly free.

    A layer that is applied to every token is sketched (`Projection`), because its exact products would not be free; so
    is any one that is `sketched`, for vectors that are kept.
    """

    width: int = option(16, help="numbers that each factor is projected to, where the layer is sketched", least=1)

    sketched: bool = option(False, help="a sketch of the layer in any case")

    def init_state(self) -> None:
        self.last: nn.Module | None = None
        self.passes: list[LinearFactors] = []
        self.sketch = KroneckerSketch(self.context.worker.seed, self.width)

    @contextlib.contextmanager
    def watching(self, model: nn.Module, examples: int) -> Iterator[None]:
        if self.last is None:
            refuse_batch_norm(model)
        modules = [self.last] if self.last is not None else [m for m in model.modules() if rule_of(m) is linear]
        with layer_calls(modules) as calls:
            yield
        calls = [call for call in calls if len(call.a) == examples == call.shape[0]]
        if not calls:
            raise UserError("the model has no linear layer with the examples first: use --order.signal exact or batch")
        self.last = calls[-1].module
        self.passes.append(_factors(calls[-1]))

    def forget(self) -> None:
        self.passes = []

    @torch.no_grad()
    def view(self) -> GradientView:
        passes, self.passes = self.passes, []
        count = sum(len(factors.a) for factors in passes)
        factors = passes[0] if len(passes) == 1 else _stacked(passes)
        if self.sketched or factors.a.shape[1] > 1:
            return Rows(self.sketch(0, factors) * count, [1] * count)
        costs = strategy_costs(*factors.shape)
        if self.context.size == 1 and costs["materialized"] < costs["ghost"]:  # with more workers, factors are shorter
            return Rows(factors.materialize().rows * count, [1] * count)
        size = max(span.stop for span in factors.spans())
        view = FactorView([factors], factors.a.new_full((count,), float(count)), size)
        columns = max(1, factors.a.shape[2] * factors.b.shape[2] // SAMPLE)
        view.sample = torch.mm(factors.b[:, 0].T, factors.a[:, 0, ::columns]).flatten() * count
        return view


def _factors(call: LayerCall) -> LinearFactors:
    layer = call.module
    assert isinstance(layer, nn.Linear)
    weights = layer.weight.numel()
    bias = Span(weights, weights + layer.bias.numel()) if layer.bias is not None else None
    factors = call.factors(linear, (Span(0, weights), bias), torch.float32)
    assert isinstance(factors, LinearFactors)
    return factors


def _stacked(passes: list[LinearFactors]) -> LinearFactors:
    a, b = torch.cat([factors.a for factors in passes]), torch.cat([factors.b for factors in passes])
    return passes[0].with_tensors({"a": a, "b": b})
