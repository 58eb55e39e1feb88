"""How far repetitions of a measurement are apart."""

from __future__ import annotations

import statistics


def spread(values: list[float]) -> float:
    """Between the quartiles, relative to the median."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle
