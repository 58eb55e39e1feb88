"""The objectives f by their definitions: the reference that the compiled loops are tested against.

All sums run over one class V; s are similarities in integer multiples of 2^-15, so gains and values are integers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from .kernels import ONE, QuantizedFeatures

LAMBDA_STEPS = 1024  # lambda of the graph cut is a multiple of 1 / LAMBDA_STEPS


def cut_weights(lam: float | str, n: int, caps: np.ndarray) -> np.ndarray:
    """lambda_j as a fraction: numerators, denominators. `size-aware` is n / 2 C_j."""
    if lam == "size-aware":
        return np.stack([np.full(len(caps), n), np.maximum(1, 2 * caps)], axis=1).astype(np.float64)
    return np.tile([float(round(float(lam) * LAMBDA_STEPS)), float(LAMBDA_STEPS)], (len(caps), 1))


def saturation_limits(kernel: np.ndarray, caps: np.ndarray, alpha: float) -> np.ndarray:
    """How much similarity to each example counts, per worker: alpha times the block's proportional part of the sum."""
    total = kernel.sum(1, dtype=np.int64)
    limits: np.ndarray = np.floor(alpha * caps[:, None] / max(1, len(kernel)) * total).astype(np.int64)
    return limits


def positive_and_negative_parts(quantized: QuantizedFeatures) -> np.ndarray:
    """Features >= 0: the positive parts of all columns, then the negative parts."""
    return np.concatenate([np.maximum(quantized.points, 0), np.maximum(-quantized.points, 0)], axis=1)


class Objective(ABC):
    """The value of a block of worker j, and what a candidate would add to it."""

    diminishing: ClassVar[bool] = True  # do gains only fall while a block grows? The lazy engine needs that.
    n: int

    @abstractmethod
    def gains(self, j: int, block: list[int], candidates: np.ndarray) -> np.ndarray:
        """One number per candidate, in the same order as their gains."""

    @abstractmethod
    def value(self, j: int, block: list[int]) -> float:
        """f of the block."""


class Facility(Objective):
    """f(A) = sum_u max_{v in A} s(u, v): how similar every example is to its nearest member. Monotone, submodular."""

    def __init__(self, kernel: np.ndarray):
        self.kernel, self.n = kernel.astype(np.int64), len(kernel)

    def gains(self, j: int, block: list[int], candidates: np.ndarray) -> np.ndarray:
        nearest = self.kernel[:, block].max(1, initial=0)
        gains: np.ndarray = np.maximum(self.kernel[:, candidates], nearest[:, None]).sum(0) - nearest.sum()
        return gains

    def value(self, j: int, block: list[int]) -> float:
        return float(self.kernel[:, block].max(1, initial=0).sum())


class GraphCut(Objective):
    """f(A) = sum_{u in V, v in A} s - lambda sum_{u, v in A} s. Submodular; monotone for lambda <= 1/2.

    lambda = 1 is the cut between A and the rest. For blocks of a given size c, lambda = n / 2c makes it the (negative)
    squared MMD between A and V, up to constants.
    """

    def __init__(self, kernel: np.ndarray, weights: np.ndarray):
        self.kernel, self.n, self.weights = kernel.astype(np.int64), len(kernel), weights

    def gains(self, j: int, block: list[int], candidates: np.ndarray) -> np.ndarray:
        over, under = self.weights[j]
        rows = self.kernel[candidates]
        own = 2.0 * rows[:, block].sum(1) + self.kernel[candidates, candidates]
        gains: np.ndarray = under * rows.sum(1) - over * own
        return gains

    def value(self, j: int, block: list[int]) -> float:
        over, under = self.weights[j]
        rows = self.kernel[block]
        return float((under * float(rows.sum()) - over * float(rows[:, block].sum())) / under)


class HerdingObjective(Objective):
    """Pick v with the largest sum_V s(v, .) / n - sum_A s(v, .) / (|A| + 1): where A is less dense than V.

    These numbers are not the gains of a set function; `value` is the negative squared MMD between A and V.
    Reference: Chen, Welling and Smola, Super-Samples from Kernel Herding, UAI 2010.
    """

    diminishing: ClassVar[bool] = False

    def __init__(self, kernel: np.ndarray):
        self.kernel, self.n = kernel.astype(np.int64), len(kernel)

    def gains(self, j: int, block: list[int], candidates: np.ndarray) -> np.ndarray:
        rows = self.kernel[candidates]
        gains: np.ndarray = (len(block) + 1.0) * rows.sum(1) - float(self.n) * rows[:, block].sum(1)
        return gains

    def value(self, j: int, block: list[int]) -> float:
        rows = self.kernel[block]
        return herding_value(
            float(rows.sum()), float(rows[:, block].sum()), float(self.kernel.sum()), len(block), self.n
        )


def herding_value(cross: float, own: float, total: float, count: int, n: int) -> float:
    """-MMD^2 from the sums of similarities over (A, V), (A, A) and (V, V); meaningless for an empty block."""
    return 2.0 * cross / (max(1, count) * n) - own / max(1, count) ** 2 - total / n**2


class Saturated(Objective):
    """f(A) = sum_u min(sum_{v in A} s(u, v), limit_j(u)): above the limit nothing counts. Monotone, submodular."""

    def __init__(self, kernel: np.ndarray, limits: np.ndarray):
        self.kernel, self.n, self.limits = kernel.astype(np.int64), len(kernel), limits

    def gains(self, j: int, block: list[int], candidates: np.ndarray) -> np.ndarray:
        remaining = np.maximum(0, self.limits[j] - self.kernel[:, block].sum(1))
        gains: np.ndarray = np.minimum(self.kernel[:, candidates], remaining[:, None]).sum(0)
        return gains

    def value(self, j: int, block: list[int]) -> float:
        return float(np.minimum(self.kernel[:, block].sum(1), self.limits[j]).sum())


class Feature(Objective):
    """f(A) = sum_d sqrt(sum_{v in A} x_{v, d}), x >= 0: some of every feature. Monotone, submodular; no kernel."""

    def __init__(self, rows: np.ndarray):
        self.rows, self.n = rows, len(rows)

    def gains(self, j: int, block: list[int], candidates: np.ndarray) -> np.ndarray:
        from .heap_greedy import feature_gain

        sums = self.rows[block].sum(0)
        return np.array([feature_gain(sums, self.rows[v]) for v in candidates])

    def value(self, j: int, block: list[int]) -> float:
        return float(np.sqrt(self.rows[block].sum(0)).sum())


def in_similarity_units(values: np.ndarray) -> np.ndarray:
    """Values of the kernel objectives, with the similarity 1 as the unit."""
    return np.asarray(values, dtype=np.float64) / ONE
