"""Similarities of all pairs in a class, in whole multiples of 2^-15, the same bits on every machine.

    rbf:     s(u, v) = exp(-gamma |x_u - x_v|^2),   gamma = 1 / median of |x_u - x_v|^2 unless given
    cosine:  s(u, v) = (1 + cos(x_u, x_v)) / 2

Features are first rounded to a grid so fine (22 bits at 64 columns) that it does not matter, and so coarse that every
sum in a matrix product of float64 is exact. Order, threads and BLAS then make no difference, and two bytes per
similarity are enough: sums of them are whole numbers, so that every engine of the greedy finds the same partition.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...core.errors import UserError
from .compiled import compiled

ONE = 1 << 15  # the similarity 1
LARGEST = 1 << 15  # examples in one dense kernel: sums of similarities must stay below 2^31
_ROWS = 256  # of the kernel at a time
_SAMPLE = 1000  # examples that the median is taken over
_ENTRIES, _REACH = 4096, 12.0  # of the table of exp(-t): exp(-12) is below half a unit of 2^-15


class Grid(NamedTuple):
    """Features as whole numbers: `points * unit` are the features, but for a shift that distances do not see."""

    points: np.ndarray  # float64, whole numbers
    squares: np.ndarray  # of their lengths
    unit: float

    def take(self, rows: np.ndarray) -> Grid:
        return Grid(self.points[rows], self.squares[rows], self.unit)


def on_grid(features: np.ndarray, kernel: str = "rbf") -> Grid:
    """Round features to whole numbers; for `cosine` rows are first scaled to length one."""
    x = features.astype(np.float64)
    if kernel == "cosine":
        length = np.sqrt(np.einsum("ij,ij->i", x, x))
        x /= np.where(length > 0, length, 1.0)[:, None]
    else:
        # The middle between least and most, not the mean: it needs no sum, whose order would matter.
        x -= (x.min(0) + x.max(0)) / 2
    bits = (50 - math.ceil(math.log2(max(2, x.shape[1])))) // 2
    top = float(np.abs(x).max()) if x.size else 0.0
    unit = (top or 1.0) / (1 << bits)
    x /= unit
    np.rint(x, out=x)
    return Grid(x, np.einsum("ij,ij->i", x, x), unit)


def median_gamma(grid: Grid) -> float:
    """1 / median squared distance between different examples; of a thousand evenly spread ones in a large class."""
    count = len(grid.points)
    if count < 2:
        return 1.0
    part = grid.take(np.unique(np.linspace(0, count - 1, min(count, _SAMPLE)).astype(np.int64)))
    squared = part.squares[:, None] + part.squares - 2.0 * (part.points @ part.points.T)
    pairs = squared[np.triu_indices(len(squared), 1)]
    middle = float(np.median(pairs)) or float(pairs.mean())  # more than half may be copies of each other
    return 1.0 / (middle * grid.unit**2) if middle > 0 else 1.0


def similarities(grid: Grid, kernel: str = "rbf", gamma: float | None = None) -> np.ndarray:
    """The symmetric matrix of all pairs, uint16 in units of 2^-15."""
    count = len(grid.points)
    if count > LARGEST:
        raise UserError(
            f"{count} examples of one class need {2e-9 * count**2:.0f} GB: use chunk <= {LARGEST} or neighbours"
        )
    scale, table = _scale(grid, kernel, gamma)
    found = np.empty((count, count), dtype=np.uint16)
    for start in range(0, count, _ROWS):
        stop = min(start + _ROWS, count)
        dots = grid.points[start:stop] @ grid.points[start:].T
        if kernel == "cosine":
            _cosine(dots, scale, found[start:stop, start:])
        else:
            _rbf(dots, grid.squares[start:stop], grid.squares[start:], scale, table, found[start:stop, start:])
        found[stop:, start:stop] = found[start:stop, stop:].T
    return found


def pair_similarities(grid: Grid, left: np.ndarray, right: np.ndarray, kernel: str, gamma: float | None) -> np.ndarray:
    """The same numbers for the pairs (left[i], right[i]) alone."""
    scale, table = _scale(grid, kernel, gamma)
    found = np.empty((1, len(left)), dtype=np.uint16)
    for start in range(0, len(left), 1 << 16):
        part = slice(start, start + (1 << 16))
        dots = np.einsum("ij,ij->i", grid.points[left[part]], grid.points[right[part]])[None]
        if kernel == "cosine":
            _cosine(dots, scale, found[:, part])
        else:
            # The sum of both squares stands in the place of the right one, against a left one of zero.
            both = grid.squares[left[part]] + grid.squares[right[part]]
            _rbf(dots, np.zeros(1), both, scale, table, found[:, part])
    return found[0]


def _scale(grid: Grid, kernel: str, gamma: float | None) -> tuple[float, np.ndarray]:
    """What a product of two points is multiplied by, and the table of exp(-t) that it then enters."""
    if kernel == "cosine":
        return grid.unit**2, np.empty(0)
    width = median_gamma(grid) if gamma is None else gamma
    table = np.exp(-np.arange(_ENTRIES + 1) * (_REACH / _ENTRIES)) * ONE
    return width * grid.unit**2 * (_ENTRIES / _REACH), table


@compiled
def _rbf(dots, left, right, scale, table, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    for i in range(dots.shape[0]):
        for j in range(dots.shape[1]):
            place = (left[i] + right[j] - 2.0 * dots[i, j]) * scale
            k = int(min(place, 4096.0))
            if k >= 4096:
                out[i, j] = 0
            else:
                # A straight line between neighbours in the table is off by at most (12 / 4096)^2 / 8 = 1.1e-6.
                out[i, j] = int(table[k] + (place - k) * (table[k + 1] - table[k]) + 0.5)


@compiled
def _cosine(dots, scale, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    for i in range(dots.shape[0]):
        for j in range(dots.shape[1]):
            value = (1.0 + min(1.0, max(-1.0, dots[i, j] * scale))) * 0.5
            out[i, j] = int(value * 32768.0 + 0.5)
