from __future__ import annotations

from dataclasses import dataclass

import torch

from .base import Signal


@dataclass
class BatchGradient(Signal):
    """One row: the mean gradient of the batch, as backward left it. Costs nothing; the batch is the unit that is seen."""

    def start(self) -> None: ...

    def vectors(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.unsqueeze(0)
