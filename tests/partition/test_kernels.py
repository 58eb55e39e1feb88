"""Similarities against their formulas, to half a unit of 2^-15; exact symmetry; the same numbers for single pairs."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.core.errors import UserError
from equipoise.partition.engine.kernels import ONE, Grid, median_gamma, on_grid, pair_similarities, similarities


def squared_distances(x: np.ndarray) -> np.ndarray:
    return ((x[:, None] - x[None]) ** 2).sum(-1)


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (1e3, 1.0), (-5.0, 1e-6)])
@pytest.mark.parametrize("gamma", [None, 0.3])
def test_rbf(shift: float, scale: float, gamma: float | None) -> None:
    x = np.random.default_rng(0).standard_normal((60, 7)) * scale + shift
    apart = squared_distances(x)
    width = gamma / scale**2 if gamma else 1.0 / np.median(apart[np.triu_indices(60, 1)])
    found = similarities(on_grid(x), "rbf", gamma / scale**2 if gamma else None)
    # Half a unit from rounding, 0.04 from the table; the grid of 23 bits moves distances by 1e-6 relative.
    assert np.abs(found - ONE * np.exp(-width * apart)).max() < 0.6
    assert (found == found.T).all()
    assert (np.diag(found) == ONE).all()


def test_cosine() -> None:
    x = np.random.default_rng(1).standard_normal((50, 9))
    x[3] = 0.0
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)
    found = similarities(on_grid(x, "cosine"), "cosine")
    assert np.abs(found - ONE * (1 + unit @ unit.T) / 2).max() < 0.6
    assert (found[3] == ONE // 2).all()  # nothing is known of an example without features


def test_same_bits_in_any_order_of_examples_and_columns() -> None:
    """Products of points on the grid are exact, so no order of summation can show."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((300, 40)).astype(np.float32)
    rows, columns = rng.permutation(300), rng.permutation(40)
    assert (similarities(on_grid(x))[np.ix_(rows, rows)] == similarities(on_grid(x[rows][:, columns]))).all()


@pytest.mark.parametrize("kernel", ["rbf", "cosine"])
def test_pairs_are_entries_of_the_matrix(kernel: str) -> None:
    rng = np.random.default_rng(3)
    grid = on_grid(rng.standard_normal((40, 5)), kernel)
    left, right = rng.integers(40, size=(2, 200))
    assert (pair_similarities(grid, left, right, kernel, None) == similarities(grid, kernel)[left, right]).all()


def test_median_width_survives_copies() -> None:
    assert median_gamma(on_grid(np.zeros((5, 2)))) == 1.0
    mostly = np.zeros((9, 1))
    mostly[0] = 4.0  # 8 of 36 pairs are 16 apart, all others 0: the mean stands in for the median
    assert median_gamma(on_grid(mostly)) == pytest.approx(1 / (16 * 8 / 36), rel=1e-6)


def test_a_class_too_large_for_memory_is_refused() -> None:
    huge = Grid(np.broadcast_to(np.zeros(1), (40_000, 1)), np.broadcast_to(np.zeros(()), (40_000,)), 1.0)
    with pytest.raises(UserError, match="chunk"):
        similarities(huge)
