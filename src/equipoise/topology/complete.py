from __future__ import annotations

from dataclasses import dataclass

from .base import Topology


@dataclass
class Complete(Topology):
    """Everybody talks to everybody, all weights 1/n: one round is the exact mean."""

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        return [(peer, 1.0 / size) for peer in range(size) if peer != rank]
