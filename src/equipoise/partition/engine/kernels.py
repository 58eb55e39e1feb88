"""Similarities of all pairs in a class, as integer multiples of 2^-15, the same bits on every machine.

    rbf:     s(u, v) = exp(-gamma |x_u - x_v|^2),   gamma = 1 / median of |x_u - x_v|^2 unless given
    cosine:  s(u, v) = (1 + cos(x_u, x_v)) / 2

Features are first quantized to integers: finely enough (22 bits at 64 columns) that it does not matter, coarsely enough
that every sum in a float64 matrix product is exact. The order of summation, the threads and the BLAS then make no
difference. Two bytes per similarity are enough, and sums of similarities are integers, so that every engine of the
greedy algorithm finds the same partition.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...core.errors import UserError
from ..moderate import moderate
from .compiled import Array, compiled

ONE = 1 << 15  # the similarity 1
LARGEST = 1 << 15  # examples in one dense kernel: sums of similarities must stay below 2^31
_ROWS = 256  # of the kernel at a time
_SAMPLE = 1000  # examples that the median is taken over
_ENTRIES, _RANGE = 4096, 12.0  # of the table of exp(-t): exp(-12) is below half a unit of 2^-15


class QuantizedFeatures(NamedTuple):
    """Features as integers: `points * unit` are the features up to a shift, which distances do not depend on."""

    points: np.ndarray  # integers, stored as float64
    squares: np.ndarray  # squared lengths of the points
    unit: float

    def take(self, rows: np.ndarray) -> QuantizedFeatures:
        return QuantizedFeatures(self.points[rows], self.squares[rows], self.unit)


def quantize(features: np.ndarray, kernel: str = "rbf") -> QuantizedFeatures:
    """Round features to integers; for `cosine` the rows are first scaled to length one."""
    x = features.astype(np.float64)
    if kernel == "cosine":
        x, _ = moderate(x)
        length = np.sqrt(np.einsum("ij,ij->i", x, x))
        x /= np.where(length > 0, length, 1.0)[:, None]
    else:
        # The midrange, not the mean: it needs no sum, so the order of the rows does not matter.
        x -= (x.min(0) + x.max(0)) / 2
    bits = (50 - math.ceil(math.log2(max(2, x.shape[1])))) // 2
    top = float(np.abs(x).max()) if x.size else 0.0
    unit = (top or 1.0) / (1 << bits)
    x /= unit
    np.rint(x, out=x)
    return QuantizedFeatures(x, np.einsum("ij,ij->i", x, x), unit)


def median_gamma(quantized: QuantizedFeatures) -> float:
    """1 / median squared distance between two examples; in a large class over 1000 examples at equal intervals."""
    count = len(quantized.points)
    if count < 2:
        return 1.0
    part = quantized.take(np.unique(np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64)))
    squared = part.squares[:, None] + part.squares - 2.0 * (part.points @ part.points.T)
    pairs = squared[np.triu_indices(len(squared), 1)]
    middle = float(np.median(pairs)) or float(pairs.mean())  # more than half of the examples may be duplicates
    return 1.0 / (middle * quantized.unit**2) if middle > 0 else 1.0


def similarities(quantized: QuantizedFeatures, kernel: str = "rbf", gamma: float | None = None) -> np.ndarray:
    """The symmetric matrix of all pairs, uint16 in units of 2^-15."""
    count = len(quantized.points)
    if count > LARGEST:
        raise UserError(
            f"{count} examples of one class need {2e-9 * count**2:.0f} GB: use chunk <= {LARGEST} or neighbours"
        )
    scale, table = _scale(quantized, kernel, gamma)
    matrix = np.empty((count, count), dtype=np.uint16)
    for start in range(0, count, _ROWS):
        stop = min(start + _ROWS, count)
        dots = quantized.points[start:stop] @ quantized.points[start:].T
        if kernel == "cosine":
            _cosine(dots, scale, matrix[start:stop, start:])
        else:
            _rbf(
                dots, quantized.squares[start:stop], quantized.squares[start:], scale, table, matrix[start:stop, start:]
            )
        matrix[stop:, start:stop] = matrix[start:stop, stop:].T
    return matrix


def pair_similarities(
    quantized: QuantizedFeatures, left: np.ndarray, right: np.ndarray, kernel: str, gamma: float | None
) -> np.ndarray:
    """The same numbers for the pairs (left[i], right[i]) only."""
    scale, table = _scale(quantized, kernel, gamma)
    row = np.empty((1, len(left)), dtype=np.uint16)
    for start in range(0, len(left), 1 << 16):
        part = slice(start, start + (1 << 16))
        dots = np.einsum("ij,ij->i", quantized.points[left[part]], quantized.points[right[part]])[None]
        if kernel == "cosine":
            _cosine(dots, scale, row[:, part])
        else:
            # _rbf adds a left and a right square: the sum of both goes in as the right one, with a left one of zero.
            both = quantized.squares[left[part]] + quantized.squares[right[part]]
            _rbf(dots, np.zeros(1), both, scale, table, row[:, part])
    pairs: np.ndarray = row[0]
    return pairs


def _scale(quantized: QuantizedFeatures, kernel: str, gamma: float | None) -> tuple[float, np.ndarray]:
    """The factor that scales a dot product of two points, and the table of exp(-t) to look the result up in."""
    if kernel == "cosine":
        return quantized.unit**2, np.empty(0)
    width = median_gamma(quantized) if gamma is None else gamma
    table = np.exp(-np.arange(_ENTRIES + 1) * (_RANGE / _ENTRIES)) * ONE
    # At most so large that identical examples, at a distance of zero, stay similar.
    return min(width * (quantized.unit * quantized.unit) * (_ENTRIES / _RANGE), 1e300), table


@compiled
def _rbf(dots: Array, left: Array, right: Array, scale: float, table: Array, out: Array) -> None:  # pragma: no cover
    for i in range(dots.shape[0]):
        for j in range(dots.shape[1]):
            place = (left[i] + right[j] - 2.0 * dots[i, j]) * scale
            k = int(min(place, 4096.0))
            if k >= 4096:
                out[i, j] = 0
            else:
                # Linear interpolation in the table is off by at most (12 / 4096)^2 / 8 = 1.1e-6.
                out[i, j] = int(table[k] + (place - k) * (table[k + 1] - table[k]) + 0.5)


@compiled
def _cosine(dots: Array, scale: float, out: Array) -> None:  # pragma: no cover
    for i in range(dots.shape[0]):
        for j in range(dots.shape[1]):
            value = (1.0 + min(1.0, max(-1.0, dots[i, j] * scale))) * 0.5
            out[i, j] = int(value * 32768.0 + 0.5)
