"""How many examples per step?"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ..comm.piggyback import Piggyback
from ..core.method import Method
from .noise import NoiseEstimate


@dataclass
class Batch(Method):
    """Batch sizes of all workers. They are the same list on every worker, so that all agree where an epoch ends."""

    axis: ClassVar[str] = "batch"
    watches: ClassVar[bool] = False  # does it measure gradients?
    spreads: ClassVar[bool] = False  # are batches that do not divide a block made even, or the last ones short?

    @abstractmethod
    def sizes(self) -> list[int]:
        """The size of each worker's next batch, by rank: another list when sizes change, never one that is changed."""

    def observe(self, due: bool) -> Piggyback | None:
        """After every backward pass, where it `watches`: this worker's own gradient is in place. `due`: a round follows.

        Returns what that round shall carry. All workers return something, or none does.
        """
        return None

    def settle(self) -> None:
        """After the step: send what no round has carried."""

    def noise(self) -> NoiseEstimate | None:
        """The latest estimate of the gradient noise, where the rule measures it."""
        return None
