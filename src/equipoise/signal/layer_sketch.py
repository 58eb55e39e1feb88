"""Sketches of one linear layer's gradients, computed for the examples of many steps in one product."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F

from .projection import KroneckerSketch
from .rows import Rows

_MOST = 32  # numbers of a side that is not projected


class LayerSketch:
    """`sum_t d_t (1, P a_t)'` of every example: a function of seed, width and shapes alone."""

    def __init__(self, seed: int, width: int):
        self.seed, self.width = seed, width
        self.kronecker = KroneckerSketch(seed, width)
        self.maps: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # weight and bias of the map from a to (1, P a)

    @torch.no_grad()
    def __call__(self, a: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        """[B, numbers of d * (1 + width)] from a [B, ..., p] and d [B, ..., q]."""
        count, a, d = len(a), a.float(), d.float()
        a, d = a.reshape(-1, a.shape[-1]), d.reshape(-1, d.shape[-1])
        inputs = F.linear(a, *self._map(a))
        if d.shape[1] > _MOST:
            d = torch.mm(d, self.kronecker.matrix(0, 1, d.shape[1], d, _MOST))
        if len(d) == count:
            return (d.unsqueeze(2) * inputs.unsqueeze(1)).flatten(1)
        return torch.bmm(
            d.view(count, -1, d.shape[1]).transpose(1, 2), inputs.view(count, -1, inputs.shape[1])
        ).flatten(1)

    def _map(self, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = a.shape[1]
        if numbers not in self.maps:
            wide = numbers > self.width
            projection = self.kronecker.matrix(0, 0, numbers, a) if wide else torch.eye(numbers).to(a)
            one = torch.zeros(1 + projection.shape[1]).to(a)
            one[0] = 1
            self.maps[numbers] = torch.cat([torch.zeros_like(projection[:, :1]), projection], 1).T.contiguous(), one
        return self.maps[numbers]


class SketchedRows(Rows):
    """The sketches of a step, as the layer's factors until they are read."""

    def __init__(self, sketch: LayerSketch, a: torch.Tensor, d: torch.Tensor):
        self.sketch, self.a, self.d = sketch, a, d
        self.items = len(a)

    @property
    def sizes(self) -> list[int]:  # type: ignore[override]
        return [1] * self.items

    @property
    def numbers(self) -> int:
        return self.a.numel() + self.d.numel()

    @property
    def kind(self) -> tuple[Any, ...]:
        return self.a.shape[1:], self.d.shape[1:], self.a.dtype, self.d.dtype

    @cached_property
    def rows(self) -> torch.Tensor:  # type: ignore[override]
        return self.stacked([self])

    @property
    def dimension(self) -> int:  # type: ignore[override]
        return self.rows.shape[1]

    @staticmethod
    def stacked(views: list[Rows]) -> torch.Tensor:
        steps = [view for view in views if isinstance(view, SketchedRows)]
        rows = steps[0].sketch(joined([step.a for step in steps]), joined([step.d for step in steps]))
        # backward divided by the number of examples in the batch: undone here.
        counts = [step.items for step in steps]
        if len(set(counts)) == 1:
            return rows.mul_(counts[0])
        scale = torch.tensor(counts, dtype=rows.dtype).repeat_interleave(torch.tensor(counts))
        return rows.mul_(scale.to(rows.device)[:, None])

    def state(self) -> dict[str, Any]:
        return {"a": self.a.clone(), "d": self.d.clone(), "seed": self.sketch.seed, "width": self.sketch.width}


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
