"""Counts per class and worker: every cell and every total is within one of its quota."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.core.errors import UserError
from equipoise.partition.capacity import _fix_totals, capacities, checked_speeds

sizes = st.lists(st.integers(0, 700), min_size=1, max_size=40)
rates = st.lists(st.one_of(st.integers(0, 9).map(float), st.floats(0.01, 100.0)), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(sizes, rates.filter(any))
def test_every_cell_and_every_total_is_within_one_of_its_quota(sizes: list[int], rates: list[float]) -> None:
    counts = capacities(sizes, np.array(rates))
    shares = np.array(rates) / sum(rates)
    quota = np.outer(sizes, shares)
    assert (counts.sum(1) == sizes).all()
    assert np.abs(counts - quota).max() < 1 + 1e-6
    assert np.abs(counts.sum(0) - quota.sum(0)).max() < 1 + 1e-6
    assert (counts[:, np.array(rates) == 0] == 0).all()


@pytest.mark.parametrize("factor", [3.7, 0.1, 1e-300, 1e307])
def test_only_ratios_matter(factor: float) -> None:
    speeds = np.array([0.1, 0.3, 1.0, 2.0, 7.0])
    sizes = [500, 499, 3, 1, 10, 77]
    assert (capacities(sizes, speeds * factor) == capacities(sizes, speeds)).all()


def test_no_drift_over_many_classes() -> None:
    """The largest-remainder method class by class would give 3300, 6700, 13300, 26700."""
    totals = capacities([500] * 100, np.array([1.0, 2.0, 4.0, 8.0])).sum(0)
    assert totals.tolist() == [3333, 6667, 13333, 26667]


def test_the_drift_of_rounding_class_by_class_is_fixed() -> None:
    quota = np.outer([500] * 30, np.array([1, 2, 4, 8]) / 15)
    low = np.floor(quota).astype(np.int64)
    counts = low.copy()
    counts[:, 1:3] += 1  # 33, 67, 134, 266: each class is complete, but the same two workers are rounded up every time
    assert np.abs(counts.sum(0) - quota.sum(0)).max() > 5
    _fix_totals(counts, np.ones_like(counts, dtype=bool), low, quota.sum(0))
    assert (counts.sum(1) == 500).all()
    assert np.isin(counts - low, (0, 1)).all()
    assert np.abs(counts.sum(0) - quota.sum(0)).max() < 1


def test_error_diffusion_leaves_nothing_to_repair_and_repair_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    repaired: list[bool] = []

    def spied(counts: np.ndarray, *rest: np.ndarray) -> None:
        before = counts.copy()
        _fix_totals(counts, *rest)
        repaired.append(not np.array_equal(before, counts))

    monkeypatch.setattr("equipoise.partition.capacity._fix_totals", spied)
    rng = np.random.default_rng(0)
    for _ in range(30):
        capacities(rng.integers(1, 700, 40), rng.uniform(0.5, 9.0, 7))
    assert repaired == [False] * 30


@pytest.mark.parametrize(
    ("speeds", "words"),
    [
        ([1.0, -1.0], "worker 1 has -1.0"),
        ([1.0, float("nan")], "worker 1 has nan"),
        ([float("inf"), 1.0], "worker 0 has inf"),
        ([0.0, 0.0], "all zero"),
        ([], "is empty"),
        ([1.0, 2.0, 3.0], "3 speeds for 2 workers"),
        (["fast", "slow"], "one number per worker"),
    ],
)
def test_impossible_speeds_are_refused(speeds: list, words: str) -> None:
    with pytest.raises(UserError, match=words):
        checked_speeds(speeds, None if len(speeds) == 0 else 2)
