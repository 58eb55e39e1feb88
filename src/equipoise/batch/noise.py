"""Estimators of the gradient noise that all rules share, as functions of a few numbers.

Worker m has a vector v_m, the mean gradient of n_m examples: E v_m = G and E |v_m - G|^2 = tr S / n_m, where S is the
covariance of one example's gradient. With n = sum_m n_m and v = sum_m n_m v_m / n:

    V = (sum_m n_m |v_m|^2 - n |v|^2) / (M - 1)      E V = tr S, for equal and unequal sizes
    Q = |v|^2 - V / n                                E Q = |G|^2

V is (1 / (M - 1)) sum_m n_m |v_m - v|^2, computed from norms alone; for equal sizes b it is
b / (M - 1) sum_m |v_m - v|^2. Its relative standard deviation is about sqrt(2 / ((M - 1) d)) for d effective
dimensions, so two workers are enough.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..comm.fused_reduction import sum_in_order


class NoiseEstimate(NamedTuple):
    """The noise of the gradient under test: the mean over workers, or each worker's own."""

    variance: float  # tr S
    square: float  # unbiased estimate of |G|^2: negative where noise hides it
    noise: float  # variance of the gradient under test in units of tr S: 1 over the examples in it
    parts: int  # gradients under test: 1 for the mean, one per worker for their own
    along: float = math.nan  # variance of <g_i, v> over examples, if requested
    loss: float = math.nan

    @property
    def norm(self) -> float:
        """The squared norm of the gradient under test as measured, noise included."""
        return self.square + self.variance * self.noise

    @property
    def finite(self) -> bool:
        return math.isfinite(self.variance) and math.isfinite(self.square)


def across_workers(
    norms: list[float],
    mean_norm: float,
    sizes: list[float],
    batches: list[float],
    *,
    own: bool = False,
    products: list[float] | None = None,
) -> NoiseEstimate | None:
    """From all |v_m|^2, |v|^2, the n_m and the batch sizes; None with fewer than two workers that have examples.

    `own`: the gradients under test are each worker's own, not their mean.
    `products` are all <v_m, v>; with `own` all <v_l, v_m>, row by row, which needs three workers with examples.
    """
    present = [m for m, n in enumerate(sizes) if n > 0]
    if len(present) < 2 or not sum_in_order(batches):
        return None
    n = sum_in_order(sizes)
    degrees = len(present) - 1  # of freedom
    variance = _positive((sum_in_order([sizes[m] * norms[m] for m in present]) - n * mean_norm) / degrees)
    along = math.nan
    if products is not None and own:
        rows = [[products[other * len(sizes) + m] for other in present if other != m] for m in present]
        weights = [[sizes[other] for other in present if other != m] for m in present]
        # Not <v_m, v_m>: its noise is no noise along v_m, but |noise|^2, which is larger by the dimension.
        parts = [_spread(row, weight) for row, weight in zip(rows, weights, strict=True)]
        along = sum_in_order([sizes[m] * part for m, part in zip(present, parts, strict=True)]) / n
    elif products is not None:
        along = _spread([products[m] for m in present], [sizes[m] for m in present])
    return _estimate(variance, mean_norm - variance / n, batches, own, along)


def across_examples(
    spreads: list[float],
    counts: list[float],
    norms: list[float],
    mean_norm: float,
    batches: list[float],
    *,
    own: bool = False,
    products: list[float] | None = None,
) -> NoiseEstimate | None:
    """From sum_i |g_i - their mean|^2 over `counts` examples on each worker; one worker is enough.

    `norms` are all |v_m|^2 of the batches, `products` sums of squares of <g_i, v> around their means; with `own` v is
    each worker's v_m.
    """
    degrees = sum_in_order([max(0.0, count - 1) for count in counts])  # of freedom
    if degrees <= 0:
        return None
    variance = _positive(sum_in_order(spreads) / degrees)
    along = math.nan if products is None else sum_in_order(products) / degrees
    total, present = sum_in_order(batches), [m for m, b in enumerate(batches) if b > 0]
    norm = sum_in_order([batches[m] * norms[m] for m in present]) / total if own else mean_norm
    return _estimate(variance, norm - variance * (len(present) if own else 1) / total, batches, own, along)


def _estimate(variance: float, square: float, batches: list[float], own: bool, along: float) -> NoiseEstimate:
    present = len([b for b in batches if b > 0])
    return NoiseEstimate(
        variance, square, (present if own else 1) / sum_in_order(batches), len(batches) if own else 1, along
    )


def _spread(values: list[float], weights: list[float]) -> float:
    """(1 / (N - 1)) sum w (value - weighted mean)^2; nan for a single value."""
    if len(values) < 2:
        return math.nan
    mean = sum_in_order([w * v for v, w in zip(values, weights, strict=True)]) / sum_in_order(weights)
    squares = [w * (v - mean) ** 2 for v, w in zip(values, weights, strict=True)]
    return sum_in_order(squares) / (len(values) - 1)


def _positive(value: float) -> float:
    """Rounding can leave a variance slightly below zero; nan stays nan."""
    return 0.0 if value < 0 else value
