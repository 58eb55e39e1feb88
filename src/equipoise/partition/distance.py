"""How far blocks are from their class: squared MMD, distance of means, ratio of variances; many splits at once.

    MMD^2(A, V) = |mean_A phi - mean_V phi|^2,   k(u, v) = phi(u) . phi(v) = exp(-|u - v|^2 / 2 m)

the biased estimate, with m the median squared distance in the class: a wider kernel than the one that blocks are chosen
by. Exact for small classes; for large ones by 1024 random Fourier features, the same for all splits that are compared.
Reference: Gretton et al., A Kernel Two-Sample Test, JMLR 2012; Rahimi and Recht, NeurIPS 2007.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .moderate import moderate

DENSE = 2000  # examples of a class up to which the kernel is exact
_FREQUENCIES = 512  # each gives a cosine and a sine
_SAMPLE = 1000  # examples that the median is taken over


class Distances(NamedTuple):
    """By split (rows) and worker; NaN for an empty block."""

    mmd2: np.ndarray
    means: np.ndarray
    spread: np.ndarray  # variance in the block / variance in the class


def distances(features: np.ndarray, owners: list[np.ndarray], workers: int, seed: int = 0) -> Distances:
    """`owners`: for each split, the worker of every example of one class."""
    n = len(features)
    features, unit = moderate(features)
    x = np.empty(features.shape, dtype=np.float32)
    # Subtracted in float64: in float32, features far from zero and close together would be the same.
    np.subtract(features, features.mean(0, dtype=np.float64), out=x, casting="same_kind")
    members = np.zeros((len(owners), workers, n), dtype=np.float32)
    for split, owner in enumerate(owners):
        members[split, owner, np.arange(n)] = 1.0
    counts = members.sum(2, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        weights = members.reshape(-1, n) / counts.reshape(-1, 1).astype(np.float32)
        median = _median_squared_distance(x)
        if n <= DENSE:
            kernel = _kernel(x, median)
            to_all = weights @ kernel
            own = np.einsum("ij,ij->i", to_all, weights, dtype=np.float64)
            mmd2 = own - 2.0 * to_all.mean(1, dtype=np.float64) + kernel.mean(dtype=np.float64)
        else:
            fourier = _fourier_features(x, median, seed)
            fourier -= fourier.mean(0, dtype=np.float64).astype(np.float32)
            mmd2 = ((weights @ fourier).astype(np.float64) ** 2).sum(1)
        centres = (weights @ x).astype(np.float64)
        squares = np.einsum("ij,ij->i", x, x, dtype=np.float64)
        inside = weights.astype(np.float64) @ squares - (centres**2).sum(1)
        spread = inside / max(squares.mean(), np.finfo(float).tiny)
    shape = counts.shape
    return Distances(mmd2.reshape(shape), unit * np.sqrt((centres**2).sum(1)).reshape(shape), spread.reshape(shape))


def _median_squared_distance(x: np.ndarray) -> float:
    part = x[np.unique(np.linspace(0, len(x) - 1, min(len(x), _SAMPLE)).astype(np.int64))]
    if len(part) < 2:
        return 1.0
    pairs = _squared_distances(part)[np.triu_indices(len(part), 1)]
    return float(np.median(pairs)) or float(pairs.mean()) or 1.0


def _squared_distances(x: np.ndarray) -> np.ndarray:
    squares = np.einsum("ij,ij->i", x, x)
    distances: np.ndarray = np.maximum(squares[:, None] + squares - 2.0 * (x @ x.T), 0.0)
    return distances


def _kernel(x: np.ndarray, median: float) -> np.ndarray:
    kernel = _squared_distances(x)
    kernel *= -0.5 / median
    np.exp(kernel, out=kernel)
    return kernel


def _fourier_features(x: np.ndarray, median: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, 29])
    directions = rng.standard_normal((x.shape[1], _FREQUENCIES), dtype=np.float32) / np.sqrt(np.float32(median))
    phases = x @ directions
    features: np.ndarray = np.concatenate([np.cos(phases), np.sin(phases)], axis=1) / np.sqrt(np.float32(_FREQUENCIES))
    return features
