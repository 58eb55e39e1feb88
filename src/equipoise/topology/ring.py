from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata
from .base import Static


@dataclass
class Ring(Static):
    """Two neighbours on a circle, weights 1/3 (Metropolis-Hastings).

    lambda = (1 + 2 cos(2 pi / n)) / 3 for n > 3, and 0 for 2 and 3 workers, where a ring is the complete
    graph. An even ring has lambda_min = -1/3 exactly.
    """

    metadata: ClassVar[Metadata] = Metadata(name="ring", help="two neighbours on a circle")

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        if size == 2:
            return [(1 - rank, 0.5)]
        return [((rank - 1) % size, 1.0 / 3.0), ((rank + 1) % size, 1.0 / 3.0)]
