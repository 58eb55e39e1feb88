"""A view of a batch through the factors of its layers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from .base import GradientView
from .convolution import Convolved
from .factors_of_layer import Lookup, Made, Outer, Part, Place

# A pass over a vector in memory costs as much as so many multiplications each number, and a call as many as this.
_PASS, _CALL = 8, 1 << 18
_AXPY = 48  # the same for `S += G`, which reads two vectors and writes one (measured: bench/order_cost.py)


class Layers(GradientView):
    """Every layer in the cheapest of three ways, decided by the shapes of this batch.

    - ghost: products of factors, for maps that are applied once per example or few times;
    - made: the gradients of the layer, for small layers that are applied many times (convolutions);
    - streamed (`regions`): one vector at a time, for large layers that are applied many times, and for tied weights,
      whose
      cross terms then come by themselves.
    """

    def __init__(self, parts: list[Part], scale: torch.Tensor, dimension: int):
        self.parts, self.scale, self.dimension = parts, scale, dimension
        self.items = len(scale)
        self.sizes = [1] * self.items
        self.whole: list[Part] = []
        self.streamed: list[Part] = []
        self.summed: dict[
            Place, torch.Tensor
        ] = {}  # sum_i g_i / scale over the items from `first` on, where it is known
        self.first = 0
        self._plan_all(parts)

    @classmethod
    def of_planned(cls, parts: list[Part], scale: torch.Tensor, dimension: int) -> Layers:
        """A view whose layers are all taken as they are."""
        view = cls([], scale, dimension)
        view.whole = parts
        return view

    def _plan_all(self, parts: list[Part]) -> None:
        uses = Counter(part.weight for part in parts)
        for part in parts:
            tied = part.weight is not None and uses[part.weight] > 1
            self._plan(part, tied)

    def _plan(self, part: Part, tied: bool) -> None:
        if isinstance(part, (Outer, Convolved)):
            count, t, p, q = part.shape
            ways = ways_of(count, t, p, q)
            # Memory: what is made of all layers together stays within a few gradients.
            if len(ways) > 1 and count * p * q > max(self.dimension // 2, 1 << 16):
                del ways["made"]
            if isinstance(part, Convolved) and part.groups > 1:
                ways = {"made": 0}
            way = "streamed" if tied else min(ways, key=lambda name: ways[name])
            if way == "made":
                part = part.made()
            elif isinstance(part, Convolved):
                part = part.made() if part.groups > 1 else part.outer()
            (self.streamed if way == "streamed" else self.whole).append(part)
        elif isinstance(part, Lookup):
            count, t = part.a.shape
            assert part.weight is not None
            ghost = (count * t) ** 2 * part.b.shape[2]
            streamed = count * (2 * _PASS * (part.weight[1] - part.weight[0]) + _CALL)
            (self.streamed if tied or streamed < ghost else self.whole).append(part)
        else:
            (self.streamed if tied else self.whole).append(part)

    def products(self, vector: torch.Tensor) -> torch.Tensor:
        if not self.whole:
            return vector.new_zeros(self.items)
        found = self.whole[0].products(vector)
        for part in self.whole[1:]:
            found += part.products(vector)
        return found * self.scale

    def gram(self) -> torch.Tensor:
        return self.cross(self)

    def cross(self, other: Layers) -> torch.Tensor:
        """Products of these vectors with those of a view whose layers are taken in the same ways."""
        if not self.whole:
            return self.scale.new_zeros(self.items, other.items)
        found = self.whole[0].gram(other.whole[0])
        for mine, theirs in zip(self.whole[1:], other.whole[1:], strict=True):
            found += mine.gram(theirs)
        return found.mul_(self.scale[:, None]).mul_(other.scale)

    def add_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        """Where backward has left G, the sum of all, only the items with the rarer weight are multiplied:
        F - R = 2 F - G for the sums F and R of the items with +1 and -1.
        """
        weights = weights * self.scale
        split = _split(weights, self.first) if self.summed else None
        for part in self.whole:
            known = self.summed.get(part.weight) if part.weight is not None and isinstance(part, Outer) else None
            if split is None or known is None or not _pays(part, split):
                part.add_to(vector, weights)
                continue
            common, rare, rest = split
            assert part.weight is not None
            if common:
                vector[slice(*part.weight)].add_(known, alpha=common)
            if len(rare):
                some = part.with_tensors({name: t[rare] for name, t in part.tensors().items()})
                replace(some, bias=None).add_to(vector, rest)
            if part.bias is not None:
                replace(part, weight=None).add_to(vector, weights)

    def regions(self) -> list[slice]:
        places = {place for part in self.streamed for place in part.places()}
        return [slice(*place) for place in sorted(places)]

    def add_regions_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        touched = weights.nonzero().flatten()
        few = (weights * self.scale)[touched]
        for part in self.streamed:
            part.with_tensors({name: t[touched] for name, t in part.tensors().items()}).add_to(vector, few)

    def vectors(self, weights: torch.Tensor) -> torch.Tensor:
        found = weights.new_zeros(len(weights), self.dimension)
        scaled = weights * self.scale
        for part in self.whole:
            made = part.made() if isinstance(part, Outer) else part
            if isinstance(made, Made):
                start = 0
                for first, last in made.places():
                    found[:, first:last] += scaled @ made.rows[:, start : start + last - first]
                    start += last - first
            else:
                for row, some in zip(found, scaled, strict=True):
                    part.add_to(row, some)
        for row, some in zip(found, weights, strict=True):
            self.add_regions_to(row, some)
        return found

    def zeros(self) -> torch.Tensor:
        return self.scale.new_zeros(self.dimension)

    def take(self, items: list[int]) -> Layers:
        index = torch.tensor(items, dtype=torch.int64, device=self.scale.device)
        parts = [part.with_tensors({n: t[index] for n, t in part.tensors().items()}) for part in self.parts]
        return Layers(parts, self.scale[index], self.dimension)

    def join(self, later: GradientView) -> Layers:
        assert isinstance(later, Layers)
        assert len(self.parts) == len(later.parts), "the two batches went through other layers"
        parts = []
        for one, two in zip(self.parts, later.parts, strict=True):
            mine, theirs = one.tensors(), two.tensors()
            parts.append(one.with_tensors({name: _cat(mine[name], theirs[name]) for name in mine}))
        joined = Layers(parts, torch.cat([self.scale, later.scale]), self.dimension)
        joined.summed, joined.first = later.summed, self.items + later.first
        return joined

    def state(self) -> Any:
        parts = []
        for part in self.parts:
            tensors = part.tensors()
            plain = {n: v for n, v in vars(part).items() if n not in tensors}
            parts.append({"kind": type(part).__name__, **plain, **{n: t.clone() for n, t in tensors.items()}})
        return {"parts": parts, "scale": self.scale.clone(), "dimension": self.dimension}


def _split(weights: torch.Tensor, first: int) -> tuple[float, torch.Tensor, torch.Tensor]:
    """The commonest weight of the items from `first` on, all items that have another one, and what they have beside it."""
    values = weights.tolist()
    common = Counter(values[first:]).most_common(1)[0][0]
    rare = [i for i, value in enumerate(values) if i < first or value != common]
    index = torch.tensor(rare, dtype=torch.int64, device=weights.device)
    beside = [values[i] - (common if i >= first else 0.0) for i in rare]
    return common, index, torch.tensor(beside, dtype=weights.dtype, device=weights.device)


def _pays(part: Part, split: tuple[float, torch.Tensor, torch.Tensor]) -> bool:
    """Are the products that are saved worth one more pass over memory?"""
    assert isinstance(part, Outer)
    count, t, _, _ = part.shape
    return (count - len(split[1])) * t > _AXPY


def ways_of(count: int, t: int, p: int, q: int) -> dict[str, int]:
    """Multiplications that each way takes for `count` examples of a p x q map that is applied t times."""
    straight = count * t * p * q
    return {
        "ghost": 2 * straight + count * count * t * t * (p + q) + 8 * _CALL,
        "made": straight + count * (count + 2) * p * q,
        "streamed": straight + count * (2 * _PASS * p * q + _CALL),
    }


_KINDS: dict[str, type[Part]] = {kind.__name__: kind for kind in (Outer, Made, Lookup, Convolved)}


def layers_from(state: Any) -> Layers:
    parts = [_KINDS[row["kind"]](**{n: v for n, v in row.items() if n != "kind"}) for row in state["parts"]]
    return Layers(parts, state["scale"], state["dimension"])


def _cat(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """Batches of sentences may differ in length: zeros contribute nothing."""
    if one.ndim >= 2 and one.shape[1] != two.shape[1]:
        length = max(one.shape[1], two.shape[1])
        one, two = (F.pad(t, [0, 0] * (t.ndim - 2) + [0, length - t.shape[1]]) for t in (one, two))
    return torch.cat([one, two])
