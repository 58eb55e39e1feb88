"""Measured speeds and the blocks that follow from them, measured again, and blocks that are computed once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.data.source import Source
from equipoise.data.view import DatasetView
from equipoise.loop import rebalance as rebalance_module
from equipoise.loop import speeds as speeds_module
from equipoise.loop import worker as worker_module
from equipoise.loop.blocks import job_blocks, shared_blocks
from equipoise.loop.job import Job, Length
from equipoise.loop.rebalance import epochs_left, pays
from equipoise.loop.speeds import Timing
from equipoise.partition.base import Partition

X = torch.randn(150, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(150) % 3
RATES = [100.0, 200.0, 400.0, 800.0]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def job(**changes: Any) -> Job:
    made = {"model": model, "loss": nn.CrossEntropyLoss(), "train": Source((X, Y)), "length": Length(epochs=3)}
    return Job(**{**made, "optimizer": lambda p: torch.optim.SGD(p, lr=0.1), **changes})


def test_a_described_cluster_is_measured_exactly() -> None:
    rates = eq.spawn(lambda comm: speeds_module.job_rates(job(), comm), 4, virtual=True, cluster=eq.Cluster(RATES))
    assert rates[0] == pytest.approx(RATES)

    def clock_stands_still(comm: Any) -> float:
        speeds_module.job_rates(job(), comm)
        return comm.now

    assert eq.spawn(clock_stands_still, 4, virtual=True, cluster=eq.Cluster(RATES)) == [0.0] * 4


def test_measured_blocks_follow_the_cluster_and_survive_a_resume(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "workers": 4,
        "partition": eq.partition.Submodular(speeds="measured"),
        "batch": eq.batch.Proportional(5),
        "cluster": eq.Cluster(RATES),
    }
    uninterrupted = eq.train(model, nn.CrossEntropyLoss(), (X, Y), epochs=2, **options)
    assert [w["samples"] for w in uninterrupted.result["workers"]] == [20, 40, 80, 160]
    out = tmp_path / "run"
    eq.train(model, nn.CrossEntropyLoss(), (X, Y), steps=7, out=out, **options)
    # Another cluster would be measured differently; the blocks of the checkpoint hold.
    options["cluster"] = eq.Cluster([100.0] * 4)
    again = eq.train(model, nn.CrossEntropyLoss(), (X, Y), epochs=2, out=out, resume=True, **options)
    assert again.result["params_sha256"] == uninterrupted.result["params_sha256"]


def test_redistributing_pays_where_it_saves_more_than_it_costs() -> None:
    sizes, rates = [50, 50], [1.0, 4.0]  # 50 s an epoch now, 20 s if proportional
    assert pays(sizes, rates, epochs_left=2, cost=59)
    assert not pays(sizes, rates, epochs_left=2, cost=61)
    assert not pays([20, 80], rates, epochs_left=1000, cost=0)  # already proportional
    assert not pays(sizes, rates, epochs_left=0, cost=0)


@pytest.mark.parametrize("divided", [True, False])
def test_workers_that_change_speed_get_other_blocks(
    divided: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = {0: [1.0, 1.0], 1: [1.0, 4.0] if divided else [1.0, 1.005]}

    def rates(job: Job, comm: Any, batch: int | None = None) -> list[float]:
        known = comm.__dict__.setdefault("measured", [])
        known.append(1)
        return table[min(len(known) - 1, 1)]

    monkeypatch.setattr(speeds_module, "job_rates", rates)
    partition = eq.partition.Stratified(speeds="measured", remeasure=1)
    loss = nn.CrossEntropyLoss()
    options: dict[str, Any] = {"workers": 2, "partition": partition, "batch": eq.batch.Proportional(5)}
    run = eq.train(model, loss, (X, Y), epochs=3, out=tmp_path / "run", **options)
    samples = [w["samples"] for w in run.result["workers"]]
    assert samples == ([75 + 30 + 30, 75 + 120 + 120] if divided else [225, 225])
    reports = [e for e in run.events if e["event"] == "speeds" and e["worker"] == 0]
    assert [e["divided"] for e in reports] == ([True, False] if divided else [False, False])
    if divided:
        table[0] = table[1]
        resumed = eq.train(model, loss, (X, Y), epochs=4, out=tmp_path / "run", resume=True, **options)
        assert [w["samples"] for w in resumed.result["workers"]] == [165, 435]


@pytest.mark.parametrize("most", [20, 80])
def test_sizes_of_a_rule_that_watches_follow_other_blocks_at_once(
    most: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Worker 1 is as fast as the other from the second epoch on. No test comes before the end, at the cap or below."""
    measured: dict[int, int] = {}

    def rates(job: Job, comm: Any, batch: int | None = None) -> list[float]:
        measured[comm.rank] = measured.get(comm.rank, 0) + 1
        return [1.0, 4.0] if measured[comm.rank] == 1 else [1.0, 1.0]

    sizes: dict[int, list[int]] = {}
    step = worker_module.Worker.step

    def spied(self: Any) -> float:
        loss = step(self)
        sizes[self.clock.step] = self.batch.sizes()
        return loss

    monkeypatch.setattr(worker_module.Worker, "step", spied)
    monkeypatch.setattr(speeds_module, "job_rates", rates)
    options: dict[str, Any] = {
        "workers": 2,
        "partition": eq.partition.Stratified(speeds="measured", remeasure=1),
        "batch": eq.batch.NormTest(start=20, most=most, speeds="blocks", every=1000),
        "epochs": 2,
    }
    whole = eq.train(model, nn.CrossEntropyLoss(), (X, Y), **options).result
    first = 6 if most == 20 else 4  # blocks of 30 and 120, in batches of at most 20, or of 40 in all
    assert list(sizes.values()) == [[5, 20] if most == 20 else [8, 32]] * first + [[20, 20]] * 4
    for stop in (first - 1, first + 1):
        measured.clear()
        saved = {"out": tmp_path / str(stop), **options}
        eq.train(model, nn.CrossEntropyLoss(), (X, Y), **(saved | {"epochs": None, "steps": stop}))
        resumed = eq.train(model, nn.CrossEntropyLoss(), (X, Y), **saved, resume=True).result
        assert resumed["params_sha256"] == whole["params_sha256"]


def test_blocks_and_batches_follow_a_speed_that_changes_within_one_epoch(tmp_path: Path) -> None:
    """Worker 0 of two equal ones is four times slower from second 2 to 8; an epoch of equal blocks takes 0.75 s."""
    partition = eq.partition.Stratified(speeds="measured", remeasure=1)
    options: dict[str, Any] = {"workers": 2, "partition": partition, "batch": eq.batch.Proportional(5)}
    cluster = eq.Cluster([100.0, 100.0], slow={0: [(2.0, 8.0, 4.0)]})
    run = eq.train(
        model, nn.CrossEntropyLoss(), (X, Y), epochs=10, cluster=cluster, out=tmp_path, log_every=1, **options
    )
    assert run.result["samples"] == 10 * 150, "no example is lost or repeated"
    ends = [e["simulated_seconds"] for e in run.events if e["event"] == "evaluate" and e["worker"] == 0]
    lengths = [b - a for a, b in zip([0.0, *ends], ends, strict=False)]
    speeds = {
        e["epoch"]: e["rates"] for e in run.events if e["event"] == "speeds" and e["worker"] == 0 and e["divided"]
    }
    begins = [0.0, *ends]
    for epoch, length in enumerate(lengths):
        slow = [2.0 <= second <= 8.0 for second in (begins[epoch], begins[epoch] + length)]
        if slow == [False, False]:
            assert length == pytest.approx(0.75, rel=0.05)
        elif slow == [True, True]:
            assert length == pytest.approx(150 / 125, rel=0.05), "blocks of 30 and 120, batches of 2 and 8"
    assert len(speeds) == 2, "once when it becomes slow, once when it is back"


def test_processes_follow_a_speed_that_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes with a clock each, which examples advance: four times as far on worker 0 from its third epoch on.

    Clocks that other processes of the machine cannot disturb; measuring, deciding and dividing are the real ones.
    """
    clock = {"now": 0.0, "per example": 0.01}

    class Slow(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            clock["now"] += len(x) * clock["per example"] * self.training
            return super().forward(x)

    step = worker_module.Worker.step

    def spied(self: Any) -> float:
        if self.comm.rank == 0 and self.clock.epoch == 2:
            clock["per example"] = 0.04
        loss = step(self)
        with (tmp_path / f"{self.clock.epoch}-{self.comm.rank}").open("a") as file:
            file.write("".join(f"{i}\n" for i in self.indices))
        return loss

    monkeypatch.setattr(worker_module.Worker, "step", spied)
    monkeypatch.setattr(speeds_module, "Timing", lambda: Timing(warmup=0, steps=1, repetitions=1))
    for module in (speeds_module, rebalance_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock["now"], process_time=time.time))
    run = eq.train(
        lambda: Slow(4, 3),
        nn.CrossEntropyLoss(),
        (X, Y),
        workers=2,
        epochs=5,
        partition=eq.partition.Stratified(speeds="measured", remeasure=1),
        batch=eq.batch.Proportional(6),
        virtual=False,
    )
    assert run.result["samples"] == 5 * 150
    blocks = [[(tmp_path / f"{epoch}-{rank}").read_text().split() for rank in (0, 1)] for epoch in range(5)]
    for first, second in blocks:
        assert sorted(map(int, first + second)) == list(range(150)), "every example once in every epoch"
    assert [len(first) for first, _ in blocks] == [75, 75, 75, 30, 30], "one epoch later"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"order": eq.order.GraB()}, "learns the order"),
        ({"period": eq.period.TotalSteps()}, "end their epochs together"),
    ],
)
def test_blocks_that_change_do_not_go_with_everything(options: dict[str, Any], words: str) -> None:
    partition = eq.partition.Stratified(speeds="measured", remeasure=2)
    options = {"sync": eq.sync.PeriodicAverage(), **options}
    with pytest.raises(UserError, match=words):
        eq.train(model, nn.CrossEntropyLoss(), (X, Y), workers=2, partition=partition, **options)


def test_epochs_left() -> None:
    class Stub:
        job = job(length=Length(epochs=5, steps=100))
        clock = type("Clock", (), {"epoch": 2, "step": 20})
        position = type("Position", (), {"consumed": 300})

    assert epochs_left(Stub()) == 3  # 80 steps are 8 epochs, 3 epochs are less
    Stub.job = job(length=Length(budget=10.0))
    assert epochs_left(Stub()) == 1
    Stub.job = job(length=Length(samples=450))
    assert epochs_left(Stub()) == 1


@dataclass
class Counted(Partition):
    """Writes down every time it is asked."""

    path: str = ""

    def split(self, view: DatasetView, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
        with open(self.path, "a") as file:
            file.write("asked\n")
        return np.array_split(rng.permutation(view.examples), workers)


@dataclass
class Refusing(Partition):
    def split(self, view: DatasetView, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
        raise UserError("no way: do something else")


@pytest.mark.parametrize("virtual", [True, False])
def test_blocks_are_computed_once(virtual: bool, tmp_path: Path) -> None:
    file = tmp_path / "asked"
    run = eq.train(
        model, nn.CrossEntropyLoss(), (X, Y), workers=3, partition=Counted(str(file)), steps=2, virtual=virtual
    )
    assert run.result["steps"] == 2
    assert file.read_text() == "asked\n"


@pytest.mark.parametrize("virtual", [True, False])
def test_worker_0_computes_and_all_have_the_same(virtual: bool, tmp_path: Path) -> None:
    """As under torchrun, where there is no parent process that could do it first."""
    file = tmp_path / "asked"

    def work(comm: Any) -> list[list[int]]:
        before = comm.ledger.bytes
        blocks = job_blocks(job(partition=Counted(str(file))), comm)
        assert comm.ledger.bytes == before
        return [block.tolist() for block in blocks]

    results = eq.spawn(work, 3, virtual=virtual)
    assert file.read_text() == "asked\n"
    assert results[0] == results[1] == results[2]
    assert results[0] == [b.tolist() for b in Counted(str(file)).blocks(Source((X, Y)).view(), 3, 0)]


def test_what_worker_0_refuses_is_raised_on_all() -> None:
    def work(comm: Any) -> str:
        with pytest.raises(UserError, match="no way") as caught:
            shared_blocks(Refusing(), Source((X, Y)).view(), comm, 0)
        return str(caught.value)

    assert eq.spawn(work, 2) == ["no way: do something else"] * 2
