"""A round when all workers together have taken N H steps."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.errors import UserError
from equipoise.observe.events import read_events
from equipoise.period import Every, TotalSteps
from equipoise.simulate.cluster import Cluster
from equipoise.sync import DPSGD, EASGD, MGDSGD, MGRAWA, AllReduce, PeriodicAverage

from ..contract import toy


def cluster(*rates: float) -> Cluster:
    return Cluster([1000.0 * rate for rate in rates])


def steps_of(result: dict[str, Any]) -> list[int]:
    return [row["steps"] for row in result["workers"]]


def test_equally_fast_workers_take_h_steps_each() -> None:
    own = toy.train(PeriodicAverage(), period=TotalSteps(4), steps=24).result
    assert steps_of(own) == [24] * 4
    assert own["rounds"] == 6
    every = toy.train(PeriodicAverage(), period=Every(4), steps=24).result
    for key in ("params_sha256", "samples", "bytes", "rounds"):
        assert own[key] == every[key], key


@pytest.mark.parametrize("rates", [(1, 1, 2, 4), (1.0, 1.3, 2.7, 0.6), (1, 9, 9, 9)], ids=str)
def test_fast_workers_take_more_and_every_round_n_h_in_total(rates: tuple[float, ...], tmp_path: Path) -> None:
    options: dict[str, Any] = {"period": TotalSteps(6), "cluster": cluster(*rates), "steps": 24, "log_every": 1}
    run = toy.train(MGRAWA(), **options, out=tmp_path / "run")
    taken = steps_of(run.result)
    assert sum(taken) == 4 * 24
    assert run.result["rounds"] == 4
    assert run.result["steps"] == 24
    # In proportion to their speeds, but for the step in which each worker reaches the round.
    expected = np.array(rates) / sum(rates) * 96
    assert np.abs(np.array(taken) - expected).max() <= 4 + 1e-9
    by_round: Counter[int] = Counter()
    for event in read_events(tmp_path / "run"):
        if event["event"] == "step":
            by_round[event["rounds"]] += event["step"]
    assert [by_round[r] for r in (1, 2, 3, 4)] == [24, 48, 72, 96]


def test_no_worker_waits_longer_than_a_step() -> None:
    """With one worker ten times slower a fixed count takes ten times as long; here the others do its work."""
    rates = (1.0, 1.0, 1.0, 0.1)
    own = toy.train(EASGD(), period=TotalSteps(20), steps=60, cluster=cluster(*rates)).result
    fixed = toy.train(EASGD(), period=20, steps=60, cluster=cluster(*rates)).result
    assert sum(steps_of(own)) == sum(steps_of(fixed)) == 240
    assert own["simulated_seconds"] < 0.2 * fixed["simulated_seconds"]


def test_a_slow_down_is_a_slower_worker_virtual_or_not() -> None:
    slowed = toy.train(EASGD(), period=TotalSteps(6), slow=[1.0, 1.0, 2.0, 4.0]).result
    described = toy.train(EASGD(), period=TotalSteps(6), cluster=cluster(1.0, 1.0, 0.5, 0.25)).result
    assert steps_of(slowed) == steps_of(described)
    assert slowed["params_sha256"] == described["params_sha256"]


def wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 4))


def test_processes_of_unequal_speed_take_unequal_steps() -> None:
    """A real counter in the store of the process group: the sum is exact, the parts follow real time."""
    run = eq.train(
        wide,
        nn.CrossEntropyLoss(),
        (toy.INPUTS, toy.TARGETS),
        workers=3,
        virtual=False,
        batch=32,
        steps=24,
        period=TotalSteps(8),
        sync=MGRAWA(),
        slow=[1.0, 1.0, 100.0],
    )
    fast, other, slow = steps_of(run.result)
    assert fast + other + slow == 3 * 24
    assert run.result["rounds"] == 3
    assert slow < 12
    assert fast + other > 60


@pytest.mark.parametrize("stop", [1, 6, 13])
def test_stops_at_rounds_and_resumes_to_the_same_bits(stop: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"period": TotalSteps(6), "cluster": cluster(1.0, 1.3, 2.7, 0.6)}
    undisturbed = toy.train(MGRAWA(prox=0.1), **options, steps=24).result
    first = toy.train(MGRAWA(prox=0.1), **options, steps=stop, out=tmp_path / "run").result
    assert first["steps"] == -(-stop // 6) * 6, "the run ends with the round in which it is long enough"
    resumed = toy.train(MGRAWA(prox=0.1), **options, steps=24, out=tmp_path / "run", resume=True).result
    for key in ("params_sha256", "models", "bytes", "rounds", "samples", "simulated_seconds"):
        assert resumed[key] == undisturbed[key], key
    assert steps_of(resumed) == steps_of(undisturbed)


@pytest.mark.parametrize(
    ("length", "least", "key"),
    [
        ({"epochs": 2.5}, 2.5 * toy.EXAMPLES, "samples"),
        ({"samples": 400}, 400, "samples"),
        ({"budget": "0.4s"}, 0.4, "s"),
    ],
    ids=["epochs", "samples", "budget"],
)
def test_lengths_are_totals_over_workers(length: dict[str, Any], least: float, key: str) -> None:
    options = {"period": TotalSteps(2), "cluster": cluster(1, 1, 2, 4), "steps": None, **length}
    result = toy.train(EASGD(), **options).result
    reached = result["simulated_seconds" if key == "s" else key]
    one_round = 0.05 if key == "s" else 4 * 2 * 8
    assert least <= reached < least + one_round


def test_workers_count_their_own_epochs_and_all_are_evaluated_together(tmp_path: Path) -> None:
    options = {"period": TotalSteps(3), "cluster": cluster(1, 1, 2, 4), "steps": None, "epochs": 4}
    run = toy.train(EASGD(), **options, out=tmp_path / "run")
    events = read_events(tmp_path / "run")
    evaluated = [e for e in events if e["event"] == "evaluate"]
    assert len(evaluated) == 4  # one an epoch of all workers together, the last at the end
    assert set(evaluated[0]["models"]) == {"mean", "centre"}
    last = {e["worker"]: e["epoch"] for e in events}
    assert last[3] > last[0], "the fast worker has begun more epochs of its own block"
    assert len({row["samples"] for row in run.result["workers"]}) > 2


def test_events_stay_one_history_when_workers_have_taken_unequal_steps(tmp_path: Path) -> None:
    """Each worker goes on from its own step: a fast one loses no line, and those of a lost attempt go."""
    options = {"period": TotalSteps(3), "cluster": cluster(1, 1, 2, 4), "checkpoint_every": 6, "log_every": 1}

    def lines(run: Path) -> list[tuple[Any, ...]]:
        events = [e for e in read_events(run) if e["event"] in ("step", "end")]
        return sorted((e["worker"], e["step"], e["rounds"], e["event"], e.get("loss", 0.0)) for e in events)

    toy.train(MGRAWA(), **options, out=tmp_path / "undisturbed")
    toy.train(MGRAWA(), **options | {"steps": 15, "keep": 9}, out=tmp_path / "run")
    os.rename(tmp_path / "run" / "checkpoints" / "step-15", tmp_path / "lost")
    toy.train(MGRAWA(), **options, out=tmp_path / "run", resume=True)
    resumed = {e["worker"]: e["step"] for e in read_events(tmp_path / "run") if e["event"] == "resume"}
    assert resumed[3] > resumed[0], resumed
    assert lines(tmp_path / "run") == lines(tmp_path / "undisturbed")


def test_checkpoints_every_so_many_steps_of_the_average_worker(tmp_path: Path) -> None:
    options = {"period": TotalSteps(3), "cluster": cluster(1, 1, 2, 4), "checkpoint_every": 7, "keep": 9}
    toy.train(EASGD(), **options, steps=24, out=tmp_path / "run")
    names = sorted(int(p.name.split("-")[1]) for p in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert names == [9, 15, 21, 24]


@pytest.mark.parametrize("length", [{"steps": 24}, {"steps": None, "epochs": 3}], ids=str)
def test_a_schedule_follows_the_average_worker(length: dict[str, Any], tmp_path: Path) -> None:
    from equipoise.loop.lr_schedule import LRSchedule

    options = {"period": TotalSteps(3), "cluster": cluster(1, 1, 2, 4), "log_every": 1, **length}
    toy.train(
        EASGD(), **options, out=tmp_path / "run", scheduler=lambda optimizer: LRSchedule(optimizer, "linear", 0.0)
    )
    rates: dict[int, list[float]] = {}
    for event in read_events(tmp_path / "run"):
        if event["event"] == "step":
            rates.setdefault(event["rounds"], []).append(event["lr"])
    last = max(rates)
    assert max(rates[1]) > 0.16
    assert max(rates[last]) < 0.06
    for number in range(1, last):
        assert max(rates[number + 1]) < max(rates[number])
        # A fast worker is ahead within a round, and no further.
        assert 0 < max(rates[number]) - min(rates[number]) < 0.06


def test_in_a_user_s_loop_rounds_end_it() -> None:
    def loop(comm: Comm) -> int:
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with eq.attach(model, optimizer, sync=EASGD(), period=TotalSteps(5)) as together:
            together.batch = comm.rank + 1  # in simulated time, worker 0 is the fastest
            while together.clock.rounds < 3:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(toy.INPUTS[:8]), toy.TARGETS[:8]).backward()
                optimizer.step()
            return together.clock.step

    taken = eq.spawn(loop, 3, virtual=True)
    assert sum(taken) == 3 * 3 * 5
    assert taken[0] > taken[1] > taken[2]


def test_two_runs_on_the_same_workers_do_not_share_a_count() -> None:
    def loop(comm: Comm) -> list[int]:
        steps = []
        for _ in range(2):
            model = nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with eq.attach(model, optimizer, sync=EASGD(), period=TotalSteps(3)) as together:
                while together.clock.rounds < 2:
                    model(torch.ones(1, 2)).sum().backward()
                    optimizer.step()
                steps.append(together.clock.step)
        return steps

    assert eq.spawn(loop, 2, virtual=True) == [[6, 6], [6, 6]]


@pytest.mark.parametrize(
    ("sync", "reason"),
    [
        (AllReduce(), "must know before"),
        (MGDSGD(), "must know before"),
        (DPSGD(combine="before"), "must know before"),
    ],
    ids=lambda v: str(v).split("(")[0],
)
def test_a_sync_that_must_know_before_is_refused(sync: Any, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        toy.train(sync, period=TotalSteps(2))


@pytest.mark.parametrize(
    "choice", [{"batch": eq.batch.NormTest()}, {"order": eq.order.CDGraB()}], ids=["batch", "order"]
)
def test_what_needs_all_workers_at_every_step_is_refused(choice: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="TotalSteps lets each"):
        toy.train(EASGD(), period=TotalSteps(2), **choice)


def test_slow_downs_are_one_factor_each() -> None:
    for bad in ([1.0, 2.0], [0.5, 1.0, 1.0, 1.0]):
        with pytest.raises(UserError, match="one factor of at least 1 for each of the 4 workers"):
            toy.train(EASGD(), slow=bad)
