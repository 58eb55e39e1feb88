from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.errors import UserError
from ..core.method import Metadata, option
from .base import Static


@dataclass
class Star(Static):
    """All workers talk to one hub, all weights 1/n (Metropolis-Hastings); lambda = 1 - 1/n for n > 2.

    The hub sends and receives n - 1 models per round.
    """

    metadata: ClassVar[Metadata] = Metadata(name="star", help="all workers talk to one hub")

    hub: int = option(0, help="the worker in the middle", least=0)

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        if self.hub >= size:
            raise UserError(f"Star(hub={self.hub}) over {size} workers: the hub must be one of 0 to {size - 1}")
        if rank != self.hub:
            return [(self.hub, 1.0 / size)]
        return [(peer, 1.0 / size) for peer in range(size) if peer != rank]
