"""Small data with known shapes for the tests of partitions."""

from __future__ import annotations

import numpy as np


def skewed_mixture(
    seed: int = 0, each: int = 400, classes: int = 3, columns: int = 16
) -> tuple[np.ndarray, np.ndarray]:
    """Classes of three clusters with 70, 25 and 5 per cent of the examples."""
    rng = np.random.default_rng(seed)
    rows, labels = [], []
    for label in range(classes):
        centres = 3.0 * rng.standard_normal((3, columns))
        rows.append(rng.standard_normal((each, columns)) + centres[rng.choice(3, p=[0.70, 0.25, 0.05], size=each)])
        labels.append(np.full(each, label))
    return np.concatenate(rows), np.concatenate(labels)


def digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.data / 16.0, bunch.target
