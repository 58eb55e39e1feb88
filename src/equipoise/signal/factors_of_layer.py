"""What one layer contributes to the gradient of each example, as factors: nothing of the size of a gradient is made.

A linear map `y = W a + c` whose output has the gradient `b` gives example i the gradient `sum_t b_it a_it'` (t: words,
pixels), and then
    <S, g_i>   = sum_t b_it' S a_it                           one product of the size of a forward pass
    <g_i, g_j> = sum_t,u (a_it' a_ju) (b_it' b_ju)            ghost products
    S += sum_i w_i g_i                                        one product of the size of a weight gradient
A part knows the place of its parameters in the flat vector. Its examples lie along the first dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F

Place = tuple[int, int]  # start and stop in the flat vector


@dataclass
class Part(ABC):
    """The factors of one layer for every example of a batch."""

    weight: Place | None
    bias: Place | None

    @abstractmethod
    def products(self, vector: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def gram(self, other: Any) -> torch.Tensor:
        """Products of these examples with those of `other`, a part of the same layer."""

    @abstractmethod
    def add_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None: ...

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything that has a row per example."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}

    def with_tensors(self, tensors: dict[str, torch.Tensor]) -> Any:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(**{**values, **tensors})

    def places(self) -> list[Place]:
        return [place for place in (self.weight, self.bias) if place is not None]


@dataclass
class Outer(Part):
    """Linear maps: inputs `a` [B, T, p] and output gradients `b` [B, T, q]."""

    a: torch.Tensor
    b: torch.Tensor

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.a), self.a.shape[1], self.a.shape[2], self.b.shape[2]

    def products(self, vector: torch.Tensor) -> torch.Tensor:
        count, t, p, q = self.shape
        a, b = self.a.flatten(0, 1), self.b.flatten(0, 1)
        found = vector.new_zeros(count)
        if self.weight is not None:
            matrix = vector[slice(*self.weight)].view(q, p)
            # The smaller of the two intermediate results.
            mapped, rest = (b @ matrix, a) if p <= q else (a @ matrix.T, b)
            found += mapped.mul_(rest).view(count, -1).sum(1)
        if self.bias is not None:
            found += (b @ vector[slice(*self.bias)]).view(count, t).sum(1)
        return found

    def gram(self, other: Outer) -> torch.Tensor:
        mine, theirs = len(self.a), len(other.a)
        table = self.b.flatten(0, 1) @ other.b.flatten(0, 1).T
        if self.weight is not None:
            by_a = self.a.flatten(0, 1) @ other.a.flatten(0, 1).T
            table *= by_a if self.bias is None else by_a.add_(1.0)  # a bias is a weight whose input is 1
        if self.a.shape[1] * other.a.shape[1] == 1:
            return table
        return table.view(mine, self.a.shape[1], theirs, other.a.shape[1]).sum((1, 3))

    def add_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        _, _, p, q = self.shape
        scaled = (self.b * weights.view(-1, 1, 1)).flatten(0, 1)
        if self.weight is not None:
            vector[slice(*self.weight)].view(q, p).addmm_(scaled.T, self.a.flatten(0, 1))
        if self.bias is not None:
            vector[slice(*self.bias)] += scaled.sum(0)

    def made(self) -> Made:
        """The gradients themselves, where they are small."""
        count, _, p, q = self.shape
        pieces = []
        if self.weight is not None:
            pieces.append(torch.bmm(self.b.transpose(1, 2), self.a).view(count, p * q))
        if self.bias is not None:
            pieces.append(self.b.sum(1))
        return Made(self.weight, self.bias, torch.cat(pieces, 1) if len(pieces) > 1 else pieces[0])


@dataclass
class Made(Part):
    """Gradients that were made: `rows` [B, numbers of weight and bias]."""

    rows: torch.Tensor

    def products(self, vector: torch.Tensor) -> torch.Tensor:
        if (whole := self._together()) is not None:
            return self.rows @ vector[whole]
        found, start = vector.new_zeros(len(self.rows)), 0
        for first, last in self.places():
            found += self.rows[:, start : start + last - first] @ vector[first:last]
            start += last - first
        return found

    def _together(self) -> slice | None:
        """Where weight and bias lie, if one after the other."""
        if self.weight is not None and self.bias is not None and self.weight[1] == self.bias[0]:
            return slice(self.weight[0], self.bias[1])
        return None

    def gram(self, other: Made) -> torch.Tensor:
        return self.rows @ other.rows.T

    def add_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        if (whole := self._together()) is not None:
            vector[whole].addmv_(self.rows.T, weights)
            return
        start = 0
        for first, last in self.places():
            vector[first:last].addmv_(self.rows[:, start : start + last - first].T, weights)
            start += last - first


@dataclass
class Lookup(Part):
    """Embeddings: indices `a` [B, T] and output gradients `b` [B, T, q]; rows `index` of the table are touched."""

    a: torch.Tensor
    b: torch.Tensor

    def products(self, vector: torch.Tensor) -> torch.Tensor:
        assert self.weight is not None
        table = vector[slice(*self.weight)].view(-1, self.b.shape[2])
        return (F.embedding(self.a, table) * self.b).sum((1, 2))

    def gram(self, other: Lookup) -> torch.Tensor:
        same = self.a.flatten()[:, None] == other.a.flatten()[None]
        table = (self.b.flatten(0, 1) @ other.b.flatten(0, 1).T) * same
        return table.view(*self.a.shape, *other.a.shape).sum((1, 3))

    def add_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        assert self.weight is not None
        table = vector[slice(*self.weight)].view(-1, self.b.shape[2])
        table.index_add_(0, self.a.flatten(), (self.b * weights.view(-1, 1, 1)).flatten(0, 1))


def hashed_words(words: torch.Tensor, seed: int, buckets: int, number: int) -> torch.Tensor:
    """A count sketch of one-hot vectors: each word goes to one bucket with one sign, by a hash instead of a table."""
    mixed = (words * 2654435761 + 40503 * (number + 1) + seed) % 4294967291
    places, signs = (mixed >> 8) % buckets, 1.0 - 2.0 * ((mixed >> 4) & 1)
    return F.one_hot(places, buckets) * signs.unsqueeze(-1)
