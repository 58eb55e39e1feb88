"""How many examples per step?"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..method import Method


@dataclass
class Batch(Method):
    """Batch sizes of all workers. They are the same list on every worker, so that all agree where an epoch ends."""

    watches: ClassVar[bool] = False  # does it want to see gradients?

    @abstractmethod
    def sizes(self) -> list[int]:
        """The size of each worker's next batch, by rank."""

    @abstractmethod
    def observe(self, vectors: torch.Tensor) -> None:
        """What the signal saw of the last batch."""
