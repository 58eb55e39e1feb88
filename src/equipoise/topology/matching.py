from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from ..core.method import Metadata, option
from .base import Topology


@dataclass
class Matching(Topology):
    """New random pairs in each round, both with weight 1/2; with an odd world size one worker has no partner.

    Every worker draws the same pairs from (seed, round). On average the fraction 1/2 - 1 / (2 (n - 1)) of the squared
    disagreement remains after a round, n even.

    Reference: Boyd et al., Randomized Gossip Algorithms, IEEE Transactions on Information Theory 2006.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="matching", help="new random pairs in each round", cites=("boyd2006randomized",)
    )

    seed: int = option(0, help="seed of the random pairs; the same on all workers", least=0)

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        partner = _partners(self.seed, round, size)[rank]
        return [(partner, 0.5)] if partner != rank else []

    def period_length(self, size: int) -> int:
        return 1 if size == 2 else 0


@lru_cache(maxsize=256)
def _partners(seed: int, round: int, size: int) -> tuple[int, ...]:
    order = np.random.default_rng([seed, round]).permutation(size).tolist()
    partners = list(range(size))
    for a, b in zip(
        order[0::2], order[1::2], strict=False
    ):  # with an odd world size the last one stays its own partner
        partners[a], partners[b] = b, a
    return tuple(partners)
