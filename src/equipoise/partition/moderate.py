"""Features whose squares no float can hold, scaled to a size that one can."""

from __future__ import annotations

import numpy as np

_RANGE = 40  # powers of two around 1 that are left alone: squares and sums of squares fit a float32


def moderate(features: np.ndarray) -> tuple[np.ndarray, float]:
    """The features divided by a power of two, which changes no bit, and that power; 1 where they are of usual size."""
    top = float(np.abs(features).max()) if features.size else 0.0
    exponent = min(int(np.frexp(top)[1]), 1023) if top > 0 and np.isfinite(top) else 0  # 2^1024 is no float
    if abs(exponent) <= _RANGE:
        return features, 1.0
    return np.ldexp(features, -exponent), float(np.ldexp(1.0, exponent))
