from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata
from .base import Static


@dataclass
class Exponential(Static):
    """Worker i sends to i + 1, i + 2, i + 4, ... (mod n): k = ceil(log2 n) peers, weights 1 / (k + 1).

    Directed and doubly stochastic. ||W - J||_2 = (k - 1) / (k + 1) for even n.

    Reference: Ying et al., Exponential Graph is Provably Efficient for Decentralized Deep Training, NeurIPS
    2021.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="exponential", help="worker i sends to i + 1, i + 2, i + 4, ...; directed", cites=("ying2021exponential",)
    )

    directed = True

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        hops = (size - 1).bit_length()
        return [((rank - (1 << hop)) % size, 1.0 / (hops + 1)) for hop in range(hops)]
