"""Vectors in memory: sketches, and gradients of groups."""

from __future__ import annotations

from typing import Any

import torch

from .base import SAMPLE, GradientView


class Rows(GradientView):
    """A matrix with one vector per row."""

    def __init__(self, rows: torch.Tensor, sizes: list[int]):
        self.rows, self.sizes = rows, sizes
        self.items, self.dimension = rows.shape
        assert len(sizes) == self.items

    @property
    def numbers(self) -> int:
        """That it keeps in memory."""
        return self.rows.numel()

    @property
    def kind(self) -> tuple[Any, ...]:
        """The same for views that can be `stacked`."""
        return (self.dimension,)

    @staticmethod
    def stacked(views: list[Rows]) -> torch.Tensor:
        """The rows of several steps."""
        return torch.cat([view.rows for view in views])

    @property
    def sample(self) -> torch.Tensor:  # type: ignore[override]
        columns = self.rows[:, :: max(1, self.dimension // SAMPLE)][:, :SAMPLE]
        if sum(self.sizes) == self.items:
            return columns.sum(0)
        return torch.tensor(self.sizes, dtype=columns.dtype, device=columns.device) @ columns

    def products(self, vector: torch.Tensor) -> torch.Tensor:
        return self.rows @ vector

    def gram(self) -> torch.Tensor:
        return self.rows @ self.rows.T

    def add_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        vector.addmv_(self.rows.T, weights)

    def regions(self) -> list[slice]:
        return []

    def add_regions_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None: ...

    def vectors(self, weights: torch.Tensor) -> torch.Tensor:
        return weights @ self.rows

    def zeros(self) -> torch.Tensor:
        return self.rows.new_zeros(self.dimension)

    def take(self, items: list[int]) -> Rows:
        return Rows(self.rows[items], [self.sizes[i] for i in items])

    def join(self, later: GradientView) -> GradientView:
        from .replay_view import ReplayView

        if isinstance(later, ReplayView):
            return later.after(self)
        assert isinstance(later, Rows)
        return Rows(torch.cat([self.rows, later.rows]), self.sizes + later.sizes)

    def state(self) -> dict[str, Any]:
        return {"rows": self.rows.clone(), "sizes": list(self.sizes)}
