"""Jitter and failures: their distribution, their cost, and that the same seed gives the same ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.launch.start import spawn
from equipoise.simulate.cluster import PAYLOAD, Cluster, Link
from equipoise.simulate.failures import FailureModel

LINK = Link(8e6 / PAYLOAD, 1e-3)  # a byte in a microsecond


def test_jitter_has_mean_one_and_its_deviation_and_follows_from_the_step_alone() -> None:
    cluster = Cluster([1.0] * 2, jitter=[0.0, 0.3])
    assert FailureModel(cluster, 0, 5).factor(17) == 1.0
    one = FailureModel(cluster, 1, 5)
    factors = np.array([one.factor(step) for step in range(20_000)])
    assert factors.mean() == pytest.approx(1.0, abs=4 * 0.3 / math.sqrt(20_000))
    assert factors.std() == pytest.approx(0.3, rel=0.05)
    assert [FailureModel(cluster, 1, 5).factor(step) for step in (900, 3)] == [factors[900], factors[3]]
    assert FailureModel(cluster, 1, 6).factor(3) != factors[3]


def test_failures_are_a_poisson_process_and_any_interval_can_be_queried() -> None:
    cluster = Cluster([1.0], failures_per_hour=6.0)
    model = FailureModel(cluster, 0, 1)
    counts = [model.count(600.0 * k, 600.0 * (k + 1)) for k in range(4000)]
    assert np.mean(counts) == pytest.approx(1.0, abs=4 / math.sqrt(4000))
    assert np.var(counts) == pytest.approx(1.0, abs=0.1)
    other = FailureModel(cluster, 0, 1)
    assert other.count(600.0 * 100, 600.0 * 101) == counts[100]
    assert other.count(0.0, 600.0 * 4000) == sum(counts)


def test_a_failure_takes_its_worker_away_and_the_others_wait() -> None:
    def work(comm: Any) -> tuple[float, dict[str, float], int]:
        for _ in range(100):
            comm.computed(3600)
            comm.sum(torch.ones(1))
        return comm.now, comm.ledger.spent, comm.ledger.failures

    cluster = Cluster([100.0, 100.0], failures_per_hour=[20.0, 0.0], repair=10.0)
    failing, other = spawn(work, 2, virtual=True, cluster=cluster)
    assert failing[2] > 0
    assert other[2] == 0
    assert failing[0] == other[0] == pytest.approx(3600.0 + 10.0 * failing[2])
    assert [failing[1]["wait"], other[1]["wait"]] == pytest.approx([10.0 * failing[2]] * 2)


def train(out: Path, epochs: int, **how: Any) -> dict[str, Any]:
    x = torch.randn(96, 5, generator=torch.Generator().manual_seed(1))
    model = torch.nn.Linear(5, 1)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    cluster = Cluster([1.0, 2.0, 3.0], LINK, jitter=0.5, failures_per_hour=600.0, repair=7.0)
    data = (x, x.sum(1, keepdim=True))
    run = eq.train(model, torch.nn.MSELoss(), data, workers=3, batch=4, cluster=cluster, epochs=epochs, out=out, **how)
    return run.result


def test_failures_are_resumed_and_differ_from_seed_to_seed(tmp_path: Path) -> None:
    uninterrupted = train(tmp_path / "uninterrupted", 3)
    train(tmp_path / "parts", 1)
    parts = train(tmp_path / "parts", 3, resume=True)
    names = ("simulated_seconds", "compute", "wait", "communicate", "failures")
    for one, other in zip(uninterrupted["workers"], parts["workers"], strict=True):
        assert [one[name] for name in names] == pytest.approx([other[name] for name in names], rel=1e-12)
        assert one["compute"] + one["wait"] + one["communicate"] == pytest.approx(one["simulated_seconds"], rel=1e-12)
    assert sum(row["failures"] for row in uninterrupted["workers"]) > 0
    assert train(tmp_path / "again", 3)["simulated_seconds"] == uninterrupted["simulated_seconds"]
    assert train(tmp_path / "other", 3, seed=1)["simulated_seconds"] != uninterrupted["simulated_seconds"]
