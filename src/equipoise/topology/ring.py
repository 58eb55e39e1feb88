from __future__ import annotations

from dataclasses import dataclass

from .base import Topology


@dataclass
class Ring(Topology):
    """Two neighbours on a circle, weights 1/3 (Metropolis-Hastings); lambda = (1 + 2 cos(2 pi / n)) / 3 for n > 3."""

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        if size == 2:
            return [(1 - rank, 0.5)]
        return [((rank - 1) % size, 1.0 / 3.0), ((rank + 1) % size, 1.0 / 3.0)]
