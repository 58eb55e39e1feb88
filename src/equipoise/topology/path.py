from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata
from .base import Static
from .weights import metropolis


@dataclass
class Path(Static):
    """A ring without one of its links. Metropolis-Hastings weights; lambda = (1 + 2 cos(pi / n)) / 3 for n > 2."""

    metadata: ClassVar[Metadata] = Metadata(name="path", help="a line: a ring without one of its links")

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        return metropolis(rank, lambda i: [peer for peer in (i - 1, i + 1) if 0 <= peer < size])
