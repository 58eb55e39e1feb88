from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata
from .base import Topology


@dataclass
class OnePeer(Topology):
    """One message a round: worker i sends to i + 2^p (mod n), weight 1/2, p = round mod ceil(log2 n).

    Directed and doubly stochastic in every round. If n is a power of two, log2 n rounds are the exact mean;
    base-k is exact for other numbers too.

    Reference: Ying et al., Exponential Graph is Provably Efficient for Decentralized Deep Training, NeurIPS
    2021.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="one-peer",
        help="sends to one worker a round, 1, 2, 4, ... further on in turn; directed",
        cites=("ying2021exponential",),
    )

    directed = True

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        return [((rank - (1 << round % self.period_length(size))) % size, 0.5)]

    def period_length(self, size: int) -> int:
        return (size - 1).bit_length()
