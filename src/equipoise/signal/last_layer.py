from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from ..core.errors import UserError
from ..core.method import option
from .base import SAMPLE, GradientView, Signal
from .factor_view import FactorView, strategy_costs
from .hooks import LayerCall, on_gradient, refuse_batch_norm
from .layer_factors import LinearFactors, Span
from .layer_rules import linear, rule_of
from .projection import KroneckerSketch
from .rows import Rows

_MOST = 32  # numbers of a side that is not projected


@dataclass
class LastLayer(Signal):
    """The gradient of the last linear layer alone: exact for it, blind to the other layers, and nearly free.

    A layer that is applied to every token is sketched, because its exact products would not be free; so is any one that
    is `sketched`, for vectors that are kept. The sketch of a layer `y = W a + c` is

        sum_t d_t (1, P a_t)',   d = the smaller of dL/dy and dL/da = W' dL/dy

    Backward computes both, so nothing of the size of a vocabulary is touched. With `dL/da` it is the gradient of a
    linear map on the layer's input. P projects to `width` numbers.
    """

    width: int = option(8, help="numbers that the input is projected to, where the layer is sketched", least=1)

    sketched: bool = option(False, help="a sketch of the layer in any case")

    def init_state(self) -> None:
        self.last: nn.Module | None = None
        self.passes: list[LayerCall] = []
        self.sketch = KroneckerSketch(self.context.worker.seed, self.width)
        self.projection: tuple[torch.Tensor, torch.Tensor] | None = None

    @contextlib.contextmanager
    def watching(self, model: nn.Module, examples: int) -> Iterator[None]:
        if self.last is None:
            refuse_batch_norm(model)
        calls: list[LayerCall] = []

        def forward(module: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            # Neither an evaluation nor something else than examples.
            if args and output.requires_grad and len(a := args[0]) == examples == len(output):
                by_input = (self.sketched or a.ndim > 2) and a.requires_grad and a.shape[-1] < output.shape[-1]
                side = a if by_input else output
                calls.append(LayerCall(module, a.detach(), side.shape))
                on_gradient(side, calls[-1].keep)

        modules = [self.last] if self.last is not None else [m for m in model.modules() if rule_of(m) is linear]
        handles = [module.register_forward_hook(forward) for module in modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if not calls:
            raise UserError("the model has no linear layer with the examples first: use --order.signal exact or batch")
        # A checkpointed block is computed again in backward: those calls get no gradient.
        last = next((call for call in reversed(calls) if call.b is not None), calls[-1])
        self.last = last.module
        self.passes.append(last)

    def forget(self) -> None:
        self.passes = []

    def view(self) -> GradientView:
        passes, self.passes = self.passes, []  # of tensors without a graph
        count = sum(len(call.a) for call in passes)
        if self.sketched or len(passes[0].a.shape) > 2:
            sketches = [self._sketch(call) for call in passes]
            rows = torch.cat(sketches) if len(sketches) > 1 else sketches[0]
            return Rows(rows if count == 1 else rows.mul_(count), [1] * count)
        factors = _factors(passes[0]) if len(passes) == 1 else _stacked([_factors(call) for call in passes])
        costs = strategy_costs(*factors.shape)
        if self.context.size == 1 and costs["materialized"] < costs["ghost"]:  # with more workers, factors are shorter
            return Rows(factors.materialize().rows * count, [1] * count)
        size = max(span.stop for span in factors.spans())
        view = FactorView([factors], factors.a.new_full((count,), float(count)), size)
        columns = max(1, factors.a.shape[2] * factors.b.shape[2] // SAMPLE)
        view.sample = torch.mm(factors.b[:, 0].T, factors.a[:, 0, ::columns]).flatten() * count
        return view

    def _sketch(self, call: LayerCall) -> torch.Tensor:
        """[B, numbers of d * (1 + width)]."""
        count, a = len(call.a), call.a.float()
        d = a.new_zeros(call.shape) if call.b is None else call.b.float()
        a, d = a.reshape(-1, a.shape[-1]), d.reshape(-1, d.shape[-1])
        if self.projection is None:
            self.projection = self._matrices(a)
        inputs = F.linear(a, *self.projection)
        if d.shape[1] > _MOST:
            d = torch.mm(d, self.sketch.matrix(0, 1, d.shape[1], d, _MOST))
        if len(d) == count:
            return (d.unsqueeze(2) * inputs.unsqueeze(1)).flatten(1)
        return torch.bmm(
            d.view(count, -1, d.shape[1]).transpose(1, 2), inputs.view(count, -1, inputs.shape[1])
        ).flatten(1)

    def _matrices(self, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight and bias of the map from a to (1, P a)."""
        numbers = a.shape[1]
        projection = self.sketch.matrix(0, 0, numbers, a) if numbers > self.width else torch.eye(numbers).to(a)
        one = torch.zeros(1 + projection.shape[1]).to(a)
        one[0] = 1
        return torch.cat([torch.zeros_like(projection[:, :1]), projection], 1).T.contiguous(), one


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
