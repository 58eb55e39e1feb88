"""The mean gradient that GraB subtracts from every gradient before it chooses a sign."""

from __future__ import annotations

from typing import Any

import torch

from ..signal.base import GradientView


class MeanEstimate:
    """The mean of the last epoch (zero in the first), or with `decay` a running mean of batches, this one included."""

    def __init__(self, decay: float | None):
        self.decay = decay
        self.mean: torch.Tensor | None = None
        self.sum: torch.Tensor | None = None
        self.weight = 0.0  # total weight of the gradients in `sum`

    @torch.no_grad()
    def update(self, view: GradientView) -> torch.Tensor:
        """Add a batch; returns the mean to subtract from it."""
        if self.sum is None or self.mean is None:
            self.sum, self.mean = view.zeros(), view.zeros()
        sizes = torch.tensor(view.sizes, dtype=self.sum.dtype, device=self.sum.device)
        count = float(sum(view.sizes))
        if self.decay is not None:
            self.sum.mul_(1 - self.decay)
            sizes = sizes * (self.decay / count)
            self.weight = (1 - self.decay) * self.weight + self.decay
        else:
            self.weight += count
        view.add_to(self.sum, sizes)
        view.add_regions_to(self.sum, sizes)
        if self.decay is not None:
            torch.div(self.sum, self.weight, out=self.mean)
        return self.mean

    def next_epoch(self) -> None:
        if self.decay is None and self.sum is not None and self.weight:
            self.mean = self.sum / self.weight
            self.sum.zero_()
            self.weight = 0.0

    def state(self) -> dict[str, Any]:
        return {
            "mean": None if self.mean is None else self.mean.clone(),
            "sum": None if self.sum is None else self.sum.clone(),
            "weight": self.weight,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.mean, self.sum, self.weight = state["mean"], state["sum"], state["weight"]
