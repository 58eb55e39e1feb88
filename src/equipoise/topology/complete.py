from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata
from .base import Static


@dataclass
class Complete(Static):
    """Every worker talks to every other, all weights 1/n: one round gives the exact mean, lambda = 0."""

    metadata: ClassVar[Metadata] = Metadata(name="complete", help="every worker talks to every other")

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        return [(peer, 1.0 / size) for peer in range(size) if peer != rank]
