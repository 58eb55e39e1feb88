"""Random events on a described cluster: jitter of the step time, and failures of workers.

All draws are functions of the seed, the rank and the step (or the time), so a checkpoint need not contain any state.
"""

from __future__ import annotations

import bisect
import math

import numpy as np

from .cluster import Cluster

_BLOCK = 256  # numbers drawn at once


class FailureModel:
    """The jitter and the failures of one worker."""

    def __init__(self, cluster: Cluster, rank: int, seed: int):
        assert isinstance(cluster.jitter, list)
        assert isinstance(cluster.failures_per_hour, list)
        assert isinstance(cluster.repair, list)
        self.jitter, self.repair = cluster.jitter[rank], cluster.repair[rank]
        self.failures_per_hour = cluster.failures_per_hour[rank]
        self._seed = [seed, rank]
        self._factors, self._block = np.empty(0), -1  # the factors of one block of steps, and its number
        self._times: list[float] = [0.0]  # of failures, after a leading 0
        self._rng = np.random.default_rng([*self._seed, 2])

    def factor(self, step: int) -> float:
        """The factor on the time of this step: log-normal with mean 1 and standard deviation `jitter`."""
        if not self.jitter:
            return 1.0
        block, index = divmod(step, _BLOCK)
        if block != self._block:
            variance = math.log1p(self.jitter**2)
            normal = np.random.default_rng([*self._seed, 1, block]).standard_normal(_BLOCK)
            self._factors, self._block = np.exp(math.sqrt(variance) * normal - variance / 2), block
        return float(self._factors[index])

    def count(self, start: float, end: float) -> int:
        """The number of failures in (start, end], simulated seconds: a Poisson process."""
        if not self.failures_per_hour:
            return 0
        while self._times[-1] <= end:
            gaps = self._rng.exponential(3600.0 / self.failures_per_hour, _BLOCK)
            self._times += (self._times[-1] + np.cumsum(gaps)).tolist()
        return bisect.bisect_right(self._times, end) - bisect.bisect_right(self._times, max(start, 0.0))
