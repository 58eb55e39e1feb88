"""How many examples per step?"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Method
from .noise import Evidence


@dataclass
class Batch(Method):
    """Batch sizes of all workers. They are the same list on every worker, so that all agree where an epoch ends."""

    watches: ClassVar[bool] = False  # does it want to see gradients?
    spreads: ClassVar[bool] = False  # are batches that do not divide a block made even, or the last ones short?
    evidence: ClassVar[Evidence | None] = None  # what a rule that watches has seen of late

    @abstractmethod
    def sizes(self) -> list[int]:
        """The size of each worker's next batch, by rank: another list when sizes change, never one that is changed."""

    @abstractmethod
    def observe(self, due: bool) -> None:
        """After every backward pass, where it `watches`: this worker's own gradient is in place. `due`: a round follows."""

    @abstractmethod
    def settle(self) -> None:
        """After the step: send by itself what no round has carried."""
