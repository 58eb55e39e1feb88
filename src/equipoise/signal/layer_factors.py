"""What one layer contributes to each example's gradient, as factors: no tensor of the size of a gradient is allocated.

A linear map `y = W a + c` whose output has the gradient `b` gives example i the gradient `sum_t b_it a_it'` (t: tokens,
pixels), and then
    <S, g_i>   = sum_t b_it' S a_it                           one product of the size of a forward pass
    <g_i, g_j> = sum_t,u (a_it' a_ju) (b_it' b_ju)            ghost products
    S += sum_i w_i g_i                                        one product of the size of a weight gradient
Factors know the span of their parameters in the flat vector. Examples lie along the first dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F

Self = TypeVar("Self", bound="LayerFactors")


class Span(NamedTuple):
    """A range of the flat vector."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass
class LayerFactors(ABC):
    """The factors of one layer for every example of a batch."""

    weight: Span | None
    bias: Span | None

    @abstractmethod
    def products(self, vector: torch.Tensor) -> torch.Tensor:
        """`<vector, g_i>` for all examples."""

    @abstractmethod
    def gram(self, other: Any) -> torch.Tensor:
        """Products of these examples with those of `other`, factors of the same layer."""

    @abstractmethod
    def add_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        """`vector += sum_i weights_i g_i`."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """All fields with one row per example."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}

    def with_tensors(self: Self, tensors: dict[str, torch.Tensor]) -> Self:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(**{**values, **tensors})

    def spans(self) -> list[Span]:
        return [span for span in (self.weight, self.bias) if span is not None]


@dataclass
class LinearFactors(LayerFactors):
    """Linear maps: inputs `a` [B, T, p] and output gradients `b` [B, T, q]."""

    a: torch.Tensor
    b: torch.Tensor

    def __post_init__(self) -> None:
        # One row per example and token: every operation needs them.
        self.inputs, self.outputs = self.a.flatten(0, 1), self.b.flatten(0, 1)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, T, p, q."""
        count, t, p = self.a.shape
        return count, t, p, self.b.shape[2]

    def products(self, vector: torch.Tensor) -> torch.Tensor:
        count, t, p, q = self.shape
        if self.weight is not None:
            matrix = vector[slice(*self.weight)].view(q, p)
            # The smaller of the two intermediate results.
            mapped, other = (self.outputs @ matrix, self.inputs) if p <= q else (self.inputs @ matrix.T, self.outputs)
            products = mapped.mul_(other).sum(1)
        else:
            products = vector.new_zeros(count * t)
        if self.bias is not None:
            products.addmv_(self.outputs, vector[slice(*self.bias)])
        return products if t == 1 else products.view(count, t).sum(1)

    def gram(self, other: LinearFactors) -> torch.Tensor:
        table = self.outputs @ other.outputs.T
        if self.weight is not None:
            by_input = self.inputs @ other.inputs.T
            # A bias is a weight whose input is 1.
            table = by_input.mul_(table) if self.bias is None else table.addcmul_(table, by_input)
        (own, t), (theirs, u) = self.a.shape[:2], other.a.shape[:2]
        return table if t * u == 1 else table.view(own, t, theirs, u).sum((1, 3))

    def add_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        _, _, p, q = self.shape
        if self.weight is not None:
            scaled = (self.b * weights.view(-1, 1, 1)).flatten(0, 1)
            vector[slice(*self.weight)].view(q, p).addmm_(scaled.T, self.inputs)
        self.add_bias_to(vector, weights)

    def add_weight_to(
        self, vector: torch.Tensor, known: torch.Tensor, common: float, rare: torch.Tensor, rest: torch.Tensor
    ) -> None:
        """`add_to` for the weight alone, from its sum over the examples: `common * known`, and `rest` for the `rare`
        ones.
        """
        assert self.weight is not None
        _, t, p, q = self.shape
        if t > 1:
            rare = (t * rare[:, None] + torch.arange(t, device=rare.device)).flatten()
            rest = rest.repeat_interleave(t)
        b = self.outputs.index_select(0, rare).mul_(rest[:, None])
        total = vector[slice(*self.weight)].view(q, p)
        total.add_(known.reshape(q, p), alpha=common).addmm_(b.T, self.inputs.index_select(0, rare))

    def add_bias_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        if self.bias is not None:
            t = self.a.shape[1]
            each = weights if t == 1 else weights.repeat_interleave(t)
            vector[slice(*self.bias)].addmv_(self.outputs.T, each)

    def materialize(self) -> ExampleGradients:
        """The gradients themselves, where they are small."""
        count, _, p, q = self.shape
        columns = []
        if self.weight is not None:
            columns.append(torch.bmm(self.b.transpose(1, 2), self.a).view(count, p * q))
        if self.bias is not None:
            columns.append(self.b.sum(1))
        return ExampleGradients(self.weight, self.bias, torch.cat(columns, 1) if len(columns) > 1 else columns[0])


@dataclass
class ExampleGradients(LayerFactors):
    """Materialized gradients of the examples: `rows` [B, numbers of weight and bias]."""

    rows: torch.Tensor

    def products(self, vector: torch.Tensor) -> torch.Tensor:
        if (adjacent := self._adjacent()) is not None:
            return self.rows @ vector[adjacent]
        products, start = vector.new_zeros(len(self.rows)), 0
        for span in self.spans():
            products += self.rows[:, start : start + span.size] @ vector[slice(*span)]
            start += span.size
        return products

    def _adjacent(self) -> slice | None:
        """The range of weight and bias, if one follows the other."""
        if self.weight is not None and self.bias is not None and self.weight.stop == self.bias.start:
            return slice(self.weight.start, self.bias.stop)
        return None

    def gram(self, other: ExampleGradients) -> torch.Tensor:
        return self.rows @ other.rows.T

    def add_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        if (adjacent := self._adjacent()) is not None:
            vector[adjacent].addmv_(self.rows.T, weights)
            return
        start = 0
        for span in self.spans():
            vector[slice(*span)].addmv_(self.rows[:, start : start + span.size].T, weights)
            start += span.size


@dataclass
class EmbeddingFactors(LayerFactors):
    """Embeddings: token indices `a` [B, T] and output gradients `b` [B, T, q]. Only the tokens' rows have one."""

    a: torch.Tensor
    b: torch.Tensor

    def products(self, vector: torch.Tensor) -> torch.Tensor:
        assert self.weight is not None
        table = vector[slice(*self.weight)].view(-1, self.b.shape[2])
        return (F.embedding(self.a, table) * self.b).sum((1, 2))

    def gram(self, other: EmbeddingFactors) -> torch.Tensor:
        same = self.a.flatten()[:, None] == other.a.flatten()[None]
        table = (self.b.flatten(0, 1) @ other.b.flatten(0, 1).T) * same
        return table.view(*self.a.shape, *other.a.shape).sum((1, 3))

    def add_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        assert self.weight is not None
        table = vector[slice(*self.weight)].view(-1, self.b.shape[2])
        table.index_add_(0, self.a.flatten(), (self.b * weights.view(-1, 1, 1)).flatten(0, 1))


def hashed_tokens(tokens: torch.Tensor, seed: int, buckets: int, number: int) -> torch.Tensor:
    """A count sketch of one-hot vectors: a hash instead of a table gives each token its bucket and sign."""
    mixed = (tokens * 2654435761 + 40503 * (number + 1) + seed) % 4294967291
    indices, signs = (mixed >> 8) % buckets, 1.0 - 2.0 * ((mixed >> 4) & 1)
    return F.one_hot(indices, buckets) * signs.unsqueeze(-1)
