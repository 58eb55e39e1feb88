"""Links that are down: each of them in each round with the same probability, drawn from (seed, round).

All workers draw the same, so both ends of a link know that it is down. Neither sends, and both keep its weight: W stays
symmetric with rows that sum to 1, and no round moves the mean.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

_STREAM = 1  # other draws from (seed, round), of pairs and matchings, must not repeat these


@lru_cache(maxsize=16)
def down(probability: float, seed: int, round: int, size: int) -> npt.NDArray[np.bool_]:
    """For every pair of workers: is the link between them down in this round?"""
    uniform = np.random.default_rng([seed, round, _STREAM]).random((size, size))
    lost = np.triu(uniform < probability, 1)
    return np.asarray(lost | lost.T)
