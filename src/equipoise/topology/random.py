from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from ..core.errors import UserError
from ..core.method import Metadata, option
from .base import Static
from .graphs import components
from .weights import metropolis

_DRAWS = 200


@dataclass
class Random(Static):
    """An Erdos-Renyi graph G(n, p), drawn again until it is connected; Metropolis-Hastings weights.

    The graph depends only on the seed, p and n. G(n, p) is connected with high probability if p > ln(n) / n.

    Reference: Erdos and Renyi, On Random Graphs I, Publicationes Mathematicae 1959.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="random", help="a random connected graph (Erdos-Renyi)", cites=("erdos1959random",)
    )

    probability: float = option(0.0, help="probability of each link; 0 takes 2 ln(n) / n", least=0, most=1)
    seed: int = option(0, help="seed of the random graph; the same on all workers", least=0)

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        graph = _graph(self.probability or min(1.0, 2 * math.log(size) / size), self.seed, size)
        return metropolis(rank, graph.__getitem__)


@lru_cache(maxsize=16)
def _graph(probability: float, seed: int, size: int) -> tuple[tuple[int, ...], ...]:
    for draw in range(_DRAWS):
        uniform = np.random.default_rng([seed, draw]).random((size, size))
        linked = np.triu(uniform < probability, 1)
        linked |= linked.T
        graph = tuple(tuple(np.flatnonzero(row).tolist()) for row in linked)
        if len(components(graph)) == 1:
            return graph
    raise UserError(
        f"Random(probability={probability:.3g}) over {size} workers: none of {_DRAWS} random graphs was connected: "
        f"use at least {min(1.0, math.log(size) / size):.2g}, or 0 for twice that"
    )
