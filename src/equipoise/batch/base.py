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
    """Batch sizes of all workers: the same list on every worker, so that all agree where an epoch ends."""

    axis: ClassVar[str] = "batch"
    watches: ClassVar[bool] = False  # does it measure gradients?

    @property
    def spreads(self) -> bool:
        """Do sizes follow the blocks? Then batches are even where a size does not divide its block."""
        return False

    def follow_blocks(self) -> None:
        """Examples were redistributed, as `context.worker` says. Other rules than those that watch are bound anew."""

    @abstractmethod
    def sizes(self) -> list[int]:
        """The size of each worker's next batch, by rank. A change makes a new list: none is modified in place."""

    def observe(self, due: bool) -> Piggyback | None:
        """After every backward pass of a rule that `watches`: this worker's own gradient is in place.

        due: a round follows. Returns the piggyback of that round; all workers return one, or none does.
        """
        return None

    def settle(self) -> None:
        """After the step: send a piggyback that no round has carried."""

    def noise(self) -> NoiseEstimate | None:
        """The latest estimate of the gradient noise, where the rule measures it."""
        return None

    def lr_gain(self, largest: float) -> float:
        """What the learning rate of the coming step is multiplied by; `largest` is its largest batch of any worker."""
        return 1.0
