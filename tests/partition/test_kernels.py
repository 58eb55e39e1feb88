"""Similarities against their formulas, to half a unit of 2^-15; exact symmetry; the same numbers for single pairs."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.core.errors import UserError
from equipoise.partition.engine.kernels import (
    ONE,
    QuantizedFeatures,
    median_gamma,
    pair_similarities,
    quantize,
    similarities,
)


def squared_distances(x: np.ndarray) -> np.ndarray:
    return ((x[:, None] - x[None]) ** 2).sum(-1)


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (1e3, 1.0), (-5.0, 1e-6)])
@pytest.mark.parametrize("gamma", [None, 0.3])
def test_rbf(shift: float, scale: float, gamma: float | None) -> None:
    x = np.random.default_rng(0).standard_normal((60, 7)) * scale + shift
    apart = squared_distances(x)
    width = gamma / scale**2 if gamma else 1.0 / np.median(apart[np.triu_indices(60, 1)])
    matrix = similarities(quantize(x), "rbf", gamma / scale**2 if gamma else None)
    # Half a unit from rounding, 0.04 from the table; quantizing to 23 bits moves distances by 1e-6 relative.
    assert np.abs(matrix - ONE * np.exp(-width * apart)).max() < 0.6
    assert (matrix == matrix.T).all()
    assert (np.diag(matrix) == ONE).all()


def test_cosine() -> None:
    x = np.random.default_rng(1).standard_normal((50, 9))
    x[3] = 0.0
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)
    matrix = similarities(quantize(x, "cosine"), "cosine")
    assert np.abs(matrix - ONE * (1 + unit @ unit.T) / 2).max() < 0.6
    assert (matrix[3] == ONE // 2).all()  # an example without features is equally similar to all


@pytest.mark.parametrize("scale", [2.0**600, 2.0**-600])
def test_features_whose_squares_no_float_holds_have_the_angles_that_they_have(scale: float) -> None:
    x = np.random.default_rng(0).standard_normal((20, 5))
    np.testing.assert_array_equal(
        similarities(quantize(x * scale, "cosine"), "cosine", 1.0), similarities(quantize(x, "cosine"), "cosine")
    )


def test_same_bits_in_any_order_of_examples_and_columns() -> None:
    """Dot products of quantized points are exact, so the order of summation makes no difference."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((300, 40)).astype(np.float32)
    rows, columns = rng.permutation(300), rng.permutation(40)
    assert (similarities(quantize(x))[np.ix_(rows, rows)] == similarities(quantize(x[rows][:, columns]))).all()


@pytest.mark.parametrize("kernel", ["rbf", "cosine"])
def test_pairs_are_entries_of_the_matrix(kernel: str) -> None:
    rng = np.random.default_rng(3)
    quantized = quantize(rng.standard_normal((40, 5)), kernel)
    left, right = rng.integers(40, size=(2, 200))
    assert (
        pair_similarities(quantized, left, right, kernel, None) == similarities(quantized, kernel)[left, right]
    ).all()


def test_median_gamma_with_duplicates() -> None:
    assert median_gamma(quantize(np.zeros((5, 2)))) == 1.0
    mostly = np.zeros((9, 1))
    mostly[0] = 4.0  # 8 of 36 pairs are 16 apart, all others 0: the mean replaces the median
    assert median_gamma(quantize(mostly)) == pytest.approx(1 / (16 * 8 / 36), rel=1e-6)


def test_a_class_too_large_for_memory_is_refused() -> None:
    huge = QuantizedFeatures(np.broadcast_to(np.zeros(1), (40_000, 1)), np.broadcast_to(np.zeros(()), (40_000,)), 1.0)
    with pytest.raises(UserError, match="chunk"):
        similarities(huge)
