"""The gradients of a batch through the factors of its layers."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ..core.device import on_host
from .base import GradientView
from .convolution import ConvolutionFactors
from .layer_factors import EmbeddingFactors, ExampleGradients, LayerFactors, LinearFactors, Span

# One pass over a vector in memory costs as many multiplications per number, and one call as many as this.
_PASS, _CALL = 8, 1 << 18
_AXPY = 20  # the same for `S += G`, which reads two vectors and writes one (measured: bench/order_cost.py)


class FactorView(GradientView):
    """Every layer by the cheapest of three strategies, chosen from the shapes of this batch.

    - ghost: products of factors, for maps that are applied once per example or few times;
    - materialized: the layer's per-example gradients, for small layers that are applied many times (convolutions);
    - streamed (`regions`): one vector at a time, for large layers that are applied many times, and for tied weights,
      whose cross terms are then included automatically.
    """

    def __init__(self, layers: list[LayerFactors], scale: torch.Tensor, dimension: int):
        self.layers, self.scale, self.dimension = layers, scale, dimension
        self.items = len(scale)
        self.sizes = [1] * self.items
        self.direct: list[LayerFactors] = []  # ghost or materialized
        self.streamed: list[LayerFactors] = []
        self.summed: dict[Span, torch.Tensor] = {}  # where known: sum_i g_i / scale over the items from `first` on
        self.first = 0
        self._plan_all(layers)

    @classmethod
    def from_planned(cls, layers: list[LayerFactors], scale: torch.Tensor, dimension: int) -> FactorView:
        """A view that uses all layers directly, as they are."""
        view = cls([], scale, dimension)
        view.direct = layers
        return view

    def _plan_all(self, layers: list[LayerFactors]) -> None:
        tied = _tied(tuple(tuple(factors.spans()) for factors in layers))
        for number, factors in enumerate(layers):
            self._plan(factors, number in tied)

    def _plan(self, factors: LayerFactors, tied: bool) -> None:
        if isinstance(factors, (LinearFactors, ConvolutionFactors)):
            count, t, p, q = factors.shape
            costs = strategy_costs(count, t, p, q)
            # Memory: the materialized gradients of all layers together stay within a few gradients of the model.
            if len(costs) > 1 and count * p * q > max(self.dimension // 2, 1 << 16):
                del costs["materialized"]
            if isinstance(factors, ConvolutionFactors) and factors.groups > 1:
                costs = {"materialized": 0}
            strategy = "streamed" if tied else min(costs, key=lambda name: costs[name])
            if strategy == "materialized":
                factors = factors.materialize()
            elif isinstance(factors, ConvolutionFactors):
                factors = factors.materialize() if factors.groups > 1 else factors.linear()
            (self.streamed if strategy == "streamed" else self.direct).append(factors)
        elif isinstance(factors, EmbeddingFactors):
            count, t = factors.a.shape
            assert factors.weight is not None
            ghost = (count * t) ** 2 * factors.b.shape[2]
            streamed = count * (2 * _PASS * factors.weight.size + _CALL)
            (self.streamed if tied or streamed < ghost else self.direct).append(factors)
        else:
            (self.streamed if tied else self.direct).append(factors)

    def products(self, vector: torch.Tensor) -> torch.Tensor:
        if not self.direct:
            return vector.new_zeros(self.items)
        products = self.direct[0].products(vector)
        for factors in self.direct[1:]:
            products += factors.products(vector)
        return products * self.scale

    def gram(self) -> torch.Tensor:
        return self.cross(self)

    def cross(self, other: FactorView) -> torch.Tensor:
        """Products of these vectors with those of a view with the same strategies."""
        if not self.direct:
            return self.scale.new_zeros(self.items, other.items)
        products = self.direct[0].gram(other.direct[0])
        for own, theirs in zip(self.direct[1:], other.direct[1:], strict=True):
            products += own.gram(theirs)
        return products.mul_(self.scale[:, None]).mul_(other.scale)

    def add_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        """As in the base. Where backward has left G, the sum of all items, only items with the rarer weight are
        multiplied: F - R = 2 F - G for the sums F and R of the items with +1 and -1.
        """
        weights = weights * self.scale
        split = _split(weights, self.first) if self.summed else None
        for factors in self.direct:
            known = self.summed.get(factors.weight) if isinstance(factors, LinearFactors) and factors.weight else None
            if split is not None and known is not None and isinstance(factors, LinearFactors) and _pays(factors, split):
                factors.add_weight_to(vector, known, *split)
                factors.add_bias_to(vector, weights)
            else:
                factors.add_to(vector, weights)

    def regions(self) -> list[slice]:
        merged: list[Span] = []
        for span in sorted(span for factors in self.streamed for span in factors.spans()):
            if merged and span.start < merged[-1].stop:
                merged[-1] = Span(merged[-1].start, max(merged[-1].stop, span.stop))
            else:
                merged.append(span)
        return [slice(*span) for span in merged]

    def add_regions_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        nonzero = weights.nonzero().flatten()
        scaled = (weights * self.scale)[nonzero]
        for factors in self.streamed:
            _rows(factors, nonzero).add_to(vector, scaled)

    def vectors(self, weights: torch.Tensor) -> torch.Tensor:
        rows = weights.new_zeros(len(weights), self.dimension)
        scaled = weights * self.scale
        for factors in self.direct:
            gradients = factors.materialize() if isinstance(factors, LinearFactors) else factors
            if isinstance(gradients, ExampleGradients):
                start = 0
                for span in gradients.spans():
                    rows[:, slice(*span)] += scaled @ gradients.rows[:, start : start + span.size]
                    start += span.size
            else:
                for row, row_weights in zip(rows, scaled, strict=True):
                    factors.add_to(row, row_weights)
        for row, row_weights in zip(rows, weights, strict=True):
            self.add_regions_to(row, row_weights)
        return rows

    def zeros(self) -> torch.Tensor:
        return self.scale.new_zeros(self.dimension)

    def take(self, items: list[int]) -> FactorView:
        index = torch.tensor(items, dtype=torch.int64, device=self.scale.device)
        return FactorView([_rows(factors, index) for factors in self.layers], self.scale[index], self.dimension)

    def join(self, later: GradientView) -> FactorView:
        assert isinstance(later, FactorView)
        layers = [_joined(*pair, self.items, later.items) for pair in _pairs(self.layers, later.layers)]
        joined = FactorView(layers, torch.cat([self.scale, later.scale]), self.dimension)
        joined.summed, joined.first = later.summed, self.items + later.first
        return joined

    def state(self) -> dict[str, Any]:
        return {
            "layers": [_factors_state(factors) for factors in self.layers],
            "scale": self.scale.clone(),
            "dimension": self.dimension,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> FactorView:
        return cls([_factors_from(row) for row in state["layers"]], state["scale"], state["dimension"])


@lru_cache(maxsize=16)
def _tied(layers: tuple[tuple[Span, ...], ...]) -> frozenset[int]:
    """The layers that share a coordinate with another one: a weight or a bias, or a part of a packed weight."""
    tied: set[int] = set()
    group: set[int] = set()
    stop = -1
    for span, number in sorted((span, number) for number, spans in enumerate(layers) for span in spans):
        group = group | {number} if span.start < stop else {number}
        stop = max(stop, span.stop)
        tied |= group if len(group) > 1 else set()
    return frozenset(tied)


Pair = tuple[LayerFactors | None, LayerFactors | None]


def _pairs(first: list[LayerFactors], second: list[LayerFactors]) -> list[Pair]:
    """The factors of the same parameters in two batches; None where one batch did not go through that layer."""
    waiting: dict[tuple[Span | None, Span | None], list[LayerFactors]] = {}
    for factors in second:
        waiting.setdefault((factors.weight, factors.bias), []).append(factors)
    pairs: list[Pair] = []
    for factors in first:
        same = waiting.get((factors.weight, factors.bias))
        pairs.append((factors, same.pop(0) if same else None))
    return pairs + [(None, factors) for rest in waiting.values() for factors in rest]


def _joined(first: LayerFactors | None, second: LayerFactors | None, items: int, later: int) -> LayerFactors:
    """The rows of both; zeros for a batch that did not go through this layer."""
    if first is None or second is None:
        known = first if first is not None else second
        assert known is not None
        rows = items if first is None else later
        zeros = known.with_tensors({name: t.new_zeros(rows, *t.shape[1:]) for name, t in known.tensors().items()})
        first, second = (known, zeros) if first is not None else (zeros, known)
    if isinstance(first, ConvolutionFactors) and isinstance(second, ConvolutionFactors):
        if first.a.shape[1:] != second.a.shape[1:]:  # images of other sizes
            grouped = first.groups > 1
            first, second = (c.materialize() if grouped else c.linear() for c in (first, second))
    elif type(first) is not type(second):  # one of them was converted before
        first, second = _as_gradients(first), _as_gradients(second)
    a, b = first.tensors(), second.tensors()
    return first.with_tensors({name: _cat(a[name], b[name]) for name in a})


def _as_gradients(factors: LayerFactors) -> LayerFactors:
    return factors.materialize() if isinstance(factors, (LinearFactors, ConvolutionFactors)) else factors


_KINDS: dict[str, type[LayerFactors]] = {
    kind.__name__: kind for kind in (LinearFactors, ExampleGradients, EmbeddingFactors, ConvolutionFactors)
}


def _factors_state(factors: LayerFactors) -> dict[str, Any]:
    state: dict[str, Any] = {"kind": type(factors).__name__}
    for name in (field.name for field in fields(factors)):
        value = getattr(factors, name)
        if isinstance(value, torch.Tensor):
            value = value.clone()
        state[name] = value._asdict() if isinstance(value, Span) else value
    return state


def _factors_from(state: dict[str, Any]) -> LayerFactors:
    values = {name: value for name, value in state.items() if name != "kind"}
    for name in ("weight", "bias"):
        values[name] = None if values[name] is None else Span(**values[name])
    return _KINDS[state["kind"]](**values)


def _rows(factors: LayerFactors, index: torch.Tensor) -> LayerFactors:
    return factors.with_tensors({name: tensor[index] for name, tensor in factors.tensors().items()})


def _split(weights: torch.Tensor, first: int) -> tuple[float, torch.Tensor, torch.Tensor]:
    """The most common weight of the items from `first` on, the items with another weight, and theirs relative to it."""
    rest = on_host(weights).numpy().copy()
    common = Counter(rest[first:].tolist()).most_common(1)[0][0]
    rest[first:] -= common
    rare = np.flatnonzero(rest)
    return common, torch.from_numpy(rare).to(weights.device), torch.from_numpy(rest[rare]).to(weights)


def _pays(factors: LayerFactors, split: tuple[float, torch.Tensor, torch.Tensor]) -> bool:
    """Are the products that are saved worth one more pass over memory, and three more calls?"""
    assert isinstance(factors, LinearFactors)
    count, t, p, q = factors.shape
    return ((count - len(split[1])) * t - _AXPY) * p * q > 3 * _CALL


def strategy_costs(count: int, t: int, p: int, q: int) -> dict[str, int]:
    """Multiplications of each strategy for `count` examples of a p x q map that is applied t times."""
    once = count * t * p * q
    return {
        "ghost": 2 * once + count * count * t * t * (p + q) + 8 * _CALL,
        "materialized": once + count * (count + 2) * p * q,
        "streamed": once + count * (2 * _PASS * p * q + _CALL),
    }


def _cat(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """Batches of sentences may differ in length: padding with zeros contributes nothing."""
    if one.ndim >= 2 and one.shape[1] != two.shape[1]:
        length = max(one.shape[1], two.shape[1])
        one, two = (F.pad(t, [0, 0] * (t.ndim - 2) + [0, length - t.shape[1]]) for t in (one, two))
    return torch.cat([one, two])
