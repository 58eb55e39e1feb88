"""Jitter and failures: their distribution, their cost, and that the same seed gives the same ones."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import equipoise as eq
from equipoise.core.errors import UserError
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
    cluster = Cluster([1.0], failures_per_hour=6.0, repair=0.0)
    model = FailureModel(cluster, 0, 1)
    counts = [len(model.outages(600.0 * k, 600.0 * (k + 1))) for k in range(4000)]
    assert np.mean(counts) == pytest.approx(1.0, abs=4 / math.sqrt(4000))
    assert np.var(counts) == pytest.approx(1.0, abs=0.1)
    other = FailureModel(cluster, 0, 1)
    assert len(other.outages(600.0 * 100, 600.0 * 101)) == counts[100]
    assert len(other.outages(0.0, 600.0 * 4000)) == sum(counts)


def test_a_worker_under_repair_does_not_fail_again() -> None:
    spells = FailureModel(Cluster([1.0], failures_per_hour=60.0, repair=90.0), 0, 4).outages(0.0, 1e6)
    assert len(spells) == pytest.approx(1e6 / 150.0, rel=0.05)
    gaps = [b.start - a.end for a, b in itertools.pairwise(spells)]
    assert min(gaps) > 0
    assert np.mean(gaps) == pytest.approx(60.0, rel=0.05)
    assert {round(spell.end - spell.start, 6) for spell in spells} == {90.0}


moments = st.lists(st.integers(0, 40), min_size=0, max_size=6, unique=True).map(sorted)


@given(moments, moments, st.integers(0, 45), st.integers(1, 30), st.sampled_from([0.5, 2.0, 4.0]))
def test_a_gradient_is_ready_when_its_work_is_done(
    away: list[int], slow: list[int], start: int, work: int, factor: float
) -> None:
    """Against a walk in steps of 1/64 s: no progress while away, one part in `factor` while slow."""
    windows = list(zip(away[::2], away[1::2], strict=False)), list(zip(slow[::2], slow[1::2], strict=False))
    cluster = Cluster([1.0], away={0: windows[0]}, slow={0: [(*window, factor) for window in windows[1]]})
    end, computed, absent = FailureModel(cluster, 0, 0).finish(float(start), float(work))
    now, left, there, gone = float(start), float(work), 0.0, 0.0
    while left > 0:
        if any(a <= now < b for a, b in windows[0]):
            gone += 1 / 64
        else:
            there += 1 / 64
            left -= 1 / 64 / (factor if any(a <= now < b for a, b in windows[1]) else 1.0)
        now += 1 / 64
    assert (end, computed, absent) == pytest.approx((now, there, gone))


def test_a_planned_absence_and_a_slow_down_cost_everybody_time() -> None:
    def work(comm: Any) -> tuple[float, dict[str, float], int]:
        for _ in range(10):
            comm.computed(100)
            comm.sum(torch.ones(1))
        return comm.now, comm.ledger.spent, comm.ledger.failures

    cluster = Cluster([100.0, 100.0], away={1: [(2.5, 7.5)]}, slow={1: [(8.5, 12.5, 4.0)]})
    one, other = spawn(work, 2, virtual=True, cluster=cluster)
    # Ten seconds of work, five away, and three of the four slow ones lost.
    assert one[0] == other[0] == pytest.approx(18.0)
    assert other[1] == pytest.approx({"compute": 13.0, "wait": 5.0, "communicate": 0.0})
    assert one[1] == pytest.approx({"compute": 10.0, "wait": 8.0, "communicate": 0.0})
    assert (one[2], other[2]) == (0, 1)


def test_an_absence_that_passes_while_a_worker_waits_costs_nothing() -> None:
    def work(comm: Any) -> float:
        for _ in range(4):
            comm.computed(100)
            comm.sum(torch.ones(1))
        return comm.now

    cluster = Cluster([10.0, 100.0], away={1: [(2.0, 9.0), (38.0, 45.0)]})
    assert spawn(work, 2, virtual=True, cluster=cluster)[0] == pytest.approx(40.0)
    later = Cluster([10.0, 100.0], away={1: [(28.0, 45.0)]})
    assert spawn(work, 2, virtual=True, cluster=later)[0] == pytest.approx(46.0), "what is left of it counts"


def test_who_leaves_for_good_is_named_with_the_fix() -> None:
    cluster = Cluster([100.0, 100.0], away={1: [(2.5, math.inf)]})
    with pytest.raises(UserError, match=r"worker 1 .* for good after 2\.5 simulated seconds.*--elastic"):
        spawn(lambda comm: [comm.computed(100) for _ in range(4)], 2, virtual=True, cluster=cluster)


def test_random_slow_downs_come_at_their_rate() -> None:
    cluster = Cluster([1.0, 1.0], slowdowns_per_hour=[0.0, 60.0], slowdown=30.0, slowdown_factor=3.0)
    # Of 90 s, 60 at full speed and 30 at a third: 70 s of work.
    end, computed, away = FailureModel(cluster, 1, 3).finish(0.0, 700_000.0)
    assert end == computed == pytest.approx(900_000.0, rel=0.02)
    assert away == 0.0
    assert FailureModel(cluster, 0, 3).finish(5.0, 7.0) == (12.0, 7.0, 0.0)


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
