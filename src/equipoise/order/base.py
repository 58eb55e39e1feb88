"""In which order does a worker visit its examples?"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ..method import Method


@dataclass
class Order(Method):
    """A permutation per epoch, perhaps learned from gradients.

    Positions count the examples of this worker's block, 0 to `context.examples` - 1.
    """

    watches: ClassVar[bool] = False  # does it want to see gradients?

    @abstractmethod
    def epoch(self, number: int) -> np.ndarray:
        """The positions in the order in which epoch `number` visits them."""

    @abstractmethod
    def observe(self, positions: np.ndarray, vectors: torch.Tensor) -> None:
        """What the signal saw of the examples at `positions`: one row each, or one row for all of them."""
