from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata
from .base import Topology


@dataclass
class OnePeer(Topology):
    """One message per round: worker i sends to i + 2^p (mod n), weight 1/2, p = round mod ceil(log2 n).

    Directed and doubly stochastic in every round. If n is a power of two, log2 n rounds give the exact mean;
    base-k is exact for other world sizes too.

    Reference: Ying et al., Exponential Graph is Provably Efficient for Decentralized Deep Training, NeurIPS
    2021.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="one-peer",
        help="worker i sends to one peer per round: i + 1, i + 2, i + 4, ... in turn; directed",
        cites=("ying2021exponential",),
    )

    directed = True

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        return [((rank - (1 << round % self.period_length(size))) % size, 0.5)]

    def period_length(self, size: int) -> int:
        return (size - 1).bit_length()
