"""Distances against their definitions; the report on known partitions."""

from __future__ import annotations

import json

import numpy as np
import pytest

from equipoise.partition import distance
from equipoise.partition.audit import audit, epoch_times, summary
from equipoise.partition.blocks import blocks_of, stratified
from equipoise.partition.distance import distances

from .instances import skewed_mixture

RNG = np.random.default_rng(0)
points = RNG.standard_normal((90, 5)) + 3.0
owner_of = np.repeat([0, 1, 2], [15, 30, 45])


def test_distances_by_definition() -> None:
    result = distances(points, [owner_of, RNG.permutation(owner_of)], 3)
    apart = ((points[:, None] - points[None]) ** 2).sum(-1)
    kernel = np.exp(-apart / (2 * np.median(apart[np.triu_indices(90, 1)])))
    for j in range(3):
        own, block = owner_of == j, points[owner_of == j]
        mmd2 = kernel[np.ix_(own, own)].mean() - 2 * kernel[own].mean() + kernel.mean()
        assert result.mmd2[0, j] == pytest.approx(mmd2, abs=1e-6)  # float32 sums of numbers near one
        assert result.means[0, j] == pytest.approx(np.linalg.norm(block.mean(0) - points.mean(0)), rel=1e-4)
        assert result.spread[0, j] == pytest.approx(block.var(0).sum() / points.var(0).sum(), rel=1e-4)
    assert (result.mmd2[1] != result.mmd2[0]).any()


def test_a_block_that_is_the_class_is_at_no_distance_and_an_empty_one_at_none() -> None:
    result = distances(points, [np.zeros(90, dtype=int)], 2)
    assert result.mmd2[0, 0] == pytest.approx(0, abs=1e-6)
    assert result.means[0, 0] == pytest.approx(0, abs=1e-5)
    assert np.isnan([result.mmd2[0, 1], result.means[0, 1], result.spread[0, 1]]).all()


def test_random_features_estimate_the_exact_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """1024 features: 10 % off at the most for these sizes (standard error about 3 %)."""
    x, y = skewed_mixture(each=600, classes=1)
    owners = [stratified(y, np.array([1.0, 3.0]), np.random.default_rng(s))[0] for s in range(3)]
    exact = distances(x, owners, 2).mmd2
    monkeypatch.setattr(distance, "DENSE", 10)
    assert distances(x, owners, 2).mmd2 == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("dense", [distance.DENSE, 10])
def test_distances_do_not_depend_on_where_the_features_are(dense: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class far from zero: 1e8 + x keeps x to 1.5e-8 in float64, and what is left after centring fits a float32."""
    monkeypatch.setattr(distance, "DENSE", dense)
    near, far = distances(points, [owner_of], 3), distances(points + 1e8, [owner_of], 3)
    assert near.means.min() > 0.1
    for here, there in zip(near, far, strict=True):
        assert there == pytest.approx(here, rel=1e-5, abs=1e-6)


def test_a_random_split_is_as_far_as_random_splits_are() -> None:
    x, y = skewed_mixture(each=150)
    speeds = np.array([1.0, 2.0, 3.0])
    owner, _ = stratified(y, speeds, np.random.default_rng(123))
    numbers = summary(audit(x, y, blocks_of(owner, 3), speeds.tolist()))
    assert 0.6 < numbers["mmd2_ratio"] < 1.6
    assert numbers["size_error"] < 1
    assert numbers["class_error"] < 1


def test_report_of_a_split_by_class() -> None:
    x, y = skewed_mixture(each=40, classes=2)
    report = audit(x, y, [np.flatnonzero(y == 0), np.flatnonzero(y == 1)], splits=3)
    assert report["sizes"] == [40, 40]
    assert report["counts"] == [[40, 0], [0, 40]]
    assert report["class_deviation"] == [20, 20]
    assert report["class_distance"] == [0.5, 0.5]
    assert json.loads(json.dumps(report)) == report


def test_epoch_time_of_proportional_blocks_is_mean_over_min() -> None:
    rates = np.array([1.0, 2.0, 4.0, 8.0])
    times = epoch_times(np.array([100, 200, 400, 800]), rates)
    assert times["epoch_gain"] == times["epoch_gain_ideal"] == 3.75
    assert epoch_times(np.array([375] * 4), rates)["epoch_gain"] == 1.0
    assert epoch_times(np.array([0, 10]), np.array([0.0, 1.0]))["epoch_gain"] is None
