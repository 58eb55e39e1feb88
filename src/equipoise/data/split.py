"""Test parts and classes, where files say neither."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np


def held_out_mask(examples: int, fraction: float, seed: int, classes: np.ndarray | None = None) -> np.ndarray:
    """Which examples are for testing: `fraction` of every class, at least one in all, never the last one of a class."""
    rng = np.random.default_rng(seed)  # our own split: a library's may change between versions
    is_test = np.zeros(examples, bool)
    groups = [np.arange(examples)] if classes is None else [np.flatnonzero(classes == k) for k in np.unique(classes)]
    for members in groups:
        count = min(len(members) - 1, round(fraction * len(members)))
        is_test[rng.permutation(members)[:count]] = True
    if not is_test.any() and examples > 1:
        is_test[max(groups, key=len)[-1]] = True
    return is_test


def class_numbers(labels: Collection[str]) -> dict[str, int]:
    """The class of every label: sorted as numbers where all are integers, else as text."""
    found = set(labels)
    try:
        # The label itself breaks ties: "1" and "01" are two classes, and a set has another order in every process.
        order = sorted(found, key=lambda label: (int(label), label))
    except ValueError:
        order = sorted(found)
    return {label: i for i, label in enumerate(order)}
