"""What orders and batch rules see of each example's gradient."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from ..method import Method


@dataclass
class Signal(Method):
    """A view of the gradient of the batch that was just taken."""

    @abstractmethod
    def vectors(self, gradient: torch.Tensor) -> torch.Tensor:
        """Rows for the examples of the batch (or one row for all of them), given the batch's flat gradient."""
