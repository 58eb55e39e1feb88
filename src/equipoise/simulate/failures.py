"""FailureModel on a described cluster: steps that take now longer, now shorter, and workers that fail.

Everything follows from the seed, the worker and the step (or the time), so that there is nothing to save.
"""

from __future__ import annotations

import bisect
import math

import numpy as np

from .cluster import Cluster

_BLOCK = 256  # numbers drawn at once


class FailureModel:
    """That of one worker."""

    def __init__(self, cluster: Cluster, rank: int, seed: int):
        assert isinstance(cluster.jitter, list)
        assert isinstance(cluster.failures_per_hour, list)
        assert isinstance(cluster.repair, list)
        self.jitter, self.repair = cluster.jitter[rank], cluster.repair[rank]
        self.hourly = cluster.failures_per_hour[rank]
        self._seed = [seed, rank]
        self._factors, self._block = np.empty(0), -1
        self._failures: list[float] = [0.0]  # times; the first is no failure
        self._stream = np.random.default_rng([*self._seed, 2])

    def factor(self, step: int) -> float:
        """How many times longer than usual this step takes: log-normal with mean 1 and standard deviation `jitter`."""
        if not self.jitter:
            return 1.0
        block, place = divmod(step, _BLOCK)
        if block != self._block:
            variance = math.log1p(self.jitter**2)
            normal = np.random.default_rng([*self._seed, 1, block]).standard_normal(_BLOCK)
            self._factors, self._block = np.exp(math.sqrt(variance) * normal - variance / 2), block
        return float(self._factors[place])

    def failures(self, start: float, end: float) -> int:
        """Failures after `start` and not after `end`, simulated seconds: a Poisson process."""
        if not self.hourly:
            return 0
        while self._failures[-1] <= end:
            gaps = self._stream.exponential(3600.0 / self.hourly, _BLOCK)
            self._failures += (self._failures[-1] + np.cumsum(gaps)).tolist()
        return bisect.bisect_right(self._failures, end) - bisect.bisect_right(self._failures, max(start, 0.0))
