"""Training for a time: the end, and the learning rate on the way there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise.loop.lr_schedule import LRSchedule
from equipoise.observe.events import read_events
from equipoise.simulate.cluster import Cluster, Link

from ..contract import toy

TIMED: dict[str, Any] = {
    "steps": None,
    "budget": "0.4s",
    "log_every": 1,
    "scheduler": lambda optimizer: LRSchedule(optimizer, "linear", 0.0),
}


def rates(folder: Path) -> list[list[float]]:
    """The workers' learning rates, step by step."""
    found: dict[int, list[float]] = {}
    for event in read_events(folder):
        if event["event"] == "step":
            found.setdefault(event["step"], []).append(event["lr"])
    return [found[step] for step in sorted(found)]


@pytest.mark.parametrize("sync", [eq.sync.AllReduce(), eq.sync.LGRAWA()], ids=["all-reduce", "lgrawa"])
def test_rate_falls_with_simulated_time_and_alike_on_all_workers(sync: Any, tmp_path: Path) -> None:
    cluster = Cluster([1000.0, 1000.0, 500.0, 800.0], Link(1e9, 1e-3))
    result = toy.train(sync, **TIMED, cluster=cluster, out=tmp_path / "run").result
    assert 0.4 <= result["simulated_seconds"] < 0.45
    found = rates(tmp_path / "run")
    assert all(len(set(row)) == 1 for row in found)
    values = [row[0] for row in found]
    assert values[0] == 0.2
    assert values == sorted(values, reverse=True)
    assert values[len(values) // 2] == pytest.approx(0.1, abs=0.02)
    assert values[-1] < 0.02


def test_resumes_where_it_was(tmp_path: Path) -> None:
    how = {**TIMED, "cluster": Cluster([1000.0] * 4), "out": tmp_path / "run", "checkpoint_every": 7, "keep": 99}
    whole = toy.train(eq.sync.LGRAWA(), **how).result
    resumed = toy.train(eq.sync.LGRAWA(), **how, resume=14).result
    for key in ("params_sha256", "steps", "rounds", "simulated_seconds"):
        assert resumed[key] == whole[key], key


def test_real_seconds_on_processes_agree_on_one_rate(tmp_path: Path) -> None:
    how = {**TIMED, "budget": 0.3, "virtual": False, "workers": 2, "deterministic": True}
    result = toy.train(eq.sync.AllReduce(), **how, out=tmp_path / "run").result
    assert result["seconds"] >= 0.3
    assert result["consensus"] == 0.0
    found = rates(tmp_path / "run")
    assert all(len(set(row)) == 1 for row in found)
    assert found[-1][0] < 0.1
