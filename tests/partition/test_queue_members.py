"""`partition = queue` while workers are killed, return and join: no example is lost, none is repeated."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import equipoise as eq
from equipoise.comm.membership import Elasticity
from equipoise.comm.virtual_membership import Change
from equipoise.data.source import Source
from equipoise.loop.agreement import Agreement
from equipoise.loop.job import Job, Length
from equipoise.loop.step import Step
from equipoise.loop.train import run_job
from equipoise.loop.worker import Worker
from equipoise.simulate.cluster import Cluster

from ..contract import toy

EXAMPLES = 61


def job_of(period: Any, epochs: float, least: int = 1, most: int = 6, **more: Any) -> Job:
    return Job(
        toy.model,
        nn.CrossEntropyLoss(),
        Source((toy.INPUTS[:EXAMPLES], toy.TARGETS[:EXAMPLES])),
        Length(epochs=epochs),
        toy.optimizer,
        partition=eq.partition.Queue(),
        batch=eq.batch.Fixed(3),
        period=period,
        sync=eq.sync.PeriodicAverage(),
        evaluate_every=1000,
        elastic=Elasticity(least, most, 20.0, snapshot_every=3),
        **more,
    )


def write(path: Path, kind: str, membership: Any, what: Any) -> None:
    with open(path, "a") as file:
        file.write(json.dumps([kind, membership.roster.generation, membership.worker, what]) + "\n")


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Write down, whatever process it is in: on what a worker trains, when it comes to a meeting and when it leaves."""
    step, give_back, meet = Worker.step, eq.attach._give_back, Agreement._meet

    def watched(worker: Worker) -> float:
        loss = step(worker)
        write(path, "batch", worker.comm.membership, worker.indices.tolist())
        return loss

    def given_back(loop: Any) -> None:
        give_back(loop)
        write(path, "batch", loop.comm.membership, loop.indices[: loop.batch])  # one that ran dry had none

    def met(agreement: Agreement, parts: Any) -> Any:
        number = agreement.times = getattr(agreement, "times", 0) + 1  # type: ignore[attr-defined]
        write(path, "comes", agreement.membership, number)
        found = meet(agreement, parts)
        write(path, "leaves", agreement.membership, number)
        return found

    Worker.step, eq.attach._give_back, Agreement._meet = watched, given_back, met  # type: ignore[method-assign]
    try:
        yield
    finally:
        Worker.step, eq.attach._give_back, Agreement._meet = step, give_back, meet  # type: ignore[method-assign]


def agreed(path: Path) -> Counter[int]:
    """How often each example was trained on: what was done before a meeting that took place, and after the last one.

    A meeting took place if somebody has left it. What is done in a generation after its last meeting is taken back,
    unless it is the last generation.
    """
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    held = {(generation, number) for kind, generation, _, number in rows if kind == "leaves"}
    last = max(generation for _, generation, _, _ in rows)
    kept: Counter[int] = Counter()
    pending: dict[tuple[int, int], list[int]] = {}
    for kind, generation, worker, what in rows:
        own = pending.setdefault((generation, worker), [])
        if kind == "batch":
            own += what
        elif kind == "comes" and (generation, what) in held:
            kept.update(own)
            own.clear()
    for (generation, _), rest in pending.items():
        kept.update(rest if generation == last else [])
    return kept


def each_once(counts: Counter[int], result: dict[str, Any], epochs: int) -> None:
    """Every list is taken in full; of the one that a run without lockstep ends in, the beginning."""
    assert set(counts) == set(range(EXAMPLES))
    assert min(counts.values()) >= epochs
    assert sum(counts.values()) == result["samples"]
    complete, begun = divmod(result["samples"], EXAMPLES)
    assert complete >= epochs
    assert sorted(counts.values()) == [complete] * (EXAMPLES - begun) + [complete + 1] * begun
    assert result["queue"] == {"examples": EXAMPLES, "epochs": complete, "begun": begun}


def planned(rng: random.Random, workers: int) -> list[Change]:
    """Random losses, returns and newcomers; one worker stays."""
    changes = []
    for worker in rng.sample(range(1, workers), rng.randint(0, workers - 1)):
        step = rng.randint(1, 9)
        changes.append(Change(worker, "lose", step=step))
        if rng.random() < 0.4:
            changes.append(Change(worker, "join", step=step + rng.randint(1, 5)))
    return changes + [Change(workers + k, "join", step=rng.randint(1, 9)) for k in range(rng.randint(0, 2))]


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "asynchronous"])
def test_workers_come_and_go_at_random(lockstep: bool, tmp_path: Path) -> None:
    changed = 0
    for seed in range(12):
        rng = random.Random(seed)
        workers, every = rng.randint(2, 5), rng.randint(1, 4)
        period = eq.period.Every(every) if lockstep else eq.period.TotalSteps(every)
        job = job_of(period, epochs=2, most=workers + 2, seed=seed)
        job.changes = planned(rng, workers)
        rates = [100.0 * rng.choice((1, 1, 2, 5)) for _ in range(workers + 2)]
        with logged(tmp_path / f"{seed}.jsonl"):
            how = {"virtual": True, "deterministic": True, "timeout": 60.0}
            result = run_job(job, workers, cluster=Cluster(rates) if seed % 2 else None, **how).result
        each_once(agreed(tmp_path / f"{seed}.jsonl"), result, 2)
        assert result["samples"] < 2 * EXAMPLES + (0 if lockstep else 3 * every * (workers + 2)) + lockstep, "a round"
        changed += len(result["membership"])
    assert changed > 20, "the plans have an effect"


@contextmanager
def killed(fates: dict[int, tuple[str, int]]) -> Iterator[None]:
    """These workers get a SIGKILL when they have called this method of a step so many times."""
    originals = {name: getattr(Step, name) for name in ("computed", "before", "after")}

    def fatal(name: str) -> Any:
        def call(step: Step, *arguments: Any) -> Any:
            result = originals[name](step, *arguments)
            where, number = fates.get(step.comm.worker, ("", 0))
            if where == name and step.clock.step == number - (name != "after"):
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in originals:
        setattr(Step, name, fatal(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(Step, name, original)


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "asynchronous"])
def test_processes_are_killed(lockstep: bool, tmp_path: Path) -> None:
    """After the gradient, before the optimizer's step, and after the round: a few points at which a worker may die."""
    period = eq.period.Every(2) if lockstep else eq.period.TotalSteps(2)
    fates = {1: ("computed", 3), 2: ("after", 4), 0: ("before", 7)}
    with killed(fates), logged(tmp_path / "log"):
        result = run_job(
            job_of(period, epochs=3), 4, virtual=False, cluster=None, deterministic=True, timeout=60.0
        ).result
    each_once(agreed(tmp_path / "log"), result, 3)
    assert {row["worker"] for change in result["membership"] for row in change["lost"]} == {0, 1, 2}


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "asynchronous"])
def test_in_a_loop_of_ones_own(lockstep: bool, tmp_path: Path) -> None:
    inputs, targets = toy.INPUTS[:EXAMPLES], toy.TARGETS[:EXAMPLES]

    def loop(comm: Any) -> dict[str, Any]:
        net = toy.model()
        sgd = toy.optimizer(net.parameters())
        sampler = eq.Sampler((inputs, targets), partition=eq.partition.Queue(), batch=3)
        period = eq.period.Every(2) if lockstep else eq.period.TotalSteps(2)
        with eq.attach(net, sgd, sampler=sampler, sync=eq.sync.PeriodicAverage(), period=period) as together:
            while together.clock.rounds < 14 or not together.clock.due:
                for indices in sampler:
                    sgd.zero_grad()
                    nn.functional.cross_entropy(net(inputs[indices]), targets[indices]).backward()
                    together.indices = indices  # type: ignore[attr-defined]  # for the log
                    sgd.step()
                    if together.clock.rounds >= 14 and together.clock.due:
                        break
            return together.outcome()

    for seed in range(5):
        rng = random.Random(seed)
        workers = rng.randint(3, 5)
        changes = [c for c in planned(rng, workers) if c.kind == "lose" and c.worker > 1]  # two stay
        elasticity = Elasticity(2, workers, 20.0, snapshot_every=3)
        cluster = Cluster([100.0 * rng.choice((1, 2, 5)) for _ in range(workers)])
        with logged(tmp_path / f"{seed}"):
            how: dict[str, Any] = {"elastic": elasticity, "changes": changes, "cluster": cluster}
            result = eq.spawn(loop, workers, virtual=True, **how)[0]
        each_once(agreed(tmp_path / f"{seed}"), result, 1)
        assert sum(len(change["lost"]) for change in result["membership"]) == len(changes)
