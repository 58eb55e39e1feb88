"""One worker that differs in what must be the same on all: noticed within the interval, named, raised on all alike."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.comm.current import current_comm
from equipoise.comm.membership import Elasticity
from equipoise.comm.virtual_membership import Change
from equipoise.config.defaults import chosen_batch, chosen_period
from equipoise.core.errors import Drift
from equipoise.core.marks import fold
from equipoise.data.source import Source
from equipoise.launch.start import spawn
from equipoise.loop import attach as attach_module
from equipoise.loop import worker as worker_module
from equipoise.loop.drift import COLUMNS, passport
from equipoise.loop.job import Job, Length
from equipoise.loop.train import _fingerprint, run_job
from equipoise.loop.worker import Worker
from equipoise.sync.mixing import RoundLinks

from ..launch.test_torchrun import under_torchrun
from .problem import DATA, plain, sgd

ODD, WORKERS, EVERY = 1, 4, 4  # the worker that differs, of how many, and the steps between two meetings


def make_job(**options: Any) -> Job:
    chosen = {"length": Length(steps=30), "log_every": EVERY, "seed": 3, **options}
    chosen |= {"batch": chosen_batch(chosen.get("batch", 4)), "period": chosen_period(chosen.get("period"))}
    job = Job(plain, nn.CrossEntropyLoss(), Source(DATA), optimizer=chosen.pop("optimizer", sgd), **chosen)
    job.fingerprint = _fingerprint(job)
    return job


def at_step(worker: Worker, number: int, change: Callable[[], None]) -> None:
    """Change something after a step."""
    original = worker.step

    def step() -> float:
        loss = original()
        if worker.clock.step == number:
            change()
        return loss

    worker.step = step  # type: ignore[method-assign]


def another_seed(worker: Worker) -> None:
    order = worker.position.order
    order._use(dataclasses.replace(order.context, worker=dataclasses.replace(order.context.worker, seed=99)))


def another_batch(worker: Worker) -> None:
    at_step(worker, 5, lambda: setattr(worker.batch, "sizes", lambda: [4, 4, 5, 4]))


def another_place(worker: Worker) -> None:
    at_step(worker, 5, lambda: setattr(worker.clock, "consumed", worker.clock.consumed + 1))


def another_edge(worker: Worker) -> None:
    mixing = worker.sync.mixing  # type: ignore[attr-defined]
    original = mixing._links_of
    mixing._links_of = lambda round: RoundLinks(0.5, [(3, 0.5)], [3]) if round == 18 else original(round)


def another_weight(worker: Worker) -> None:
    mixing = worker.sync.mixing  # type: ignore[attr-defined]
    original = mixing._links_of

    def links(round: int) -> RoundLinks:
        keeps, sources, targets = original(round)
        return RoundLinks(keeps, [(peer, weight + 1e-4 * (peer == 2)) for peer, weight in sources], targets)

    mixing._links_of = links


def another_parameter(worker: Worker) -> None:
    def change() -> None:
        with torch.no_grad():
            worker.model[2].bias[1] = torch.nextafter(worker.model[2].bias[1], torch.tensor(9.0))  # type: ignore[index,union-attr,operator]

    at_step(worker, 5, change)


def a_bad_average(worker: Worker) -> None:
    original = worker.sync.after_step

    def after_step(x: torch.Tensor) -> None:
        original(x)
        if worker.clock.step > 5:
            x[7] += 1e-3

    worker.sync.after_step = after_step  # type: ignore[method-assign]


def another_decision(worker: Worker) -> None:
    at_step(worker, 5, lambda: setattr(worker.order, "digest", "0"))


def nothing(worker: Worker) -> None: ...


GOSSIP = {"sync": eq.sync.DPSGD()}
MATCHING = {"sync": eq.sync.DPSGD(topology=eq.topology.Matching())}
AVERAGE = {"sync": eq.sync.PeriodicAverage(), "period": 2}

# By name: choices of all workers, of the odd one, what it does, and what the line says.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[Worker], None], str]] = {
    "recipe": (
        AVERAGE,
        {"period": 3},
        nothing,
        "the others in its recipe: period.steps is 3 there and 2 on the others",
    ),
    "optimizer": (
        {},
        {"optimizer": lambda p: torch.optim.SGD(p, lr=0.2, weight_decay=0.1)},
        nothing,
        "in its recipe at step #: optimizer.weight_decay is 0.1 there and 0 on the others",
    ),
    "order": ({}, {}, another_seed, f"worker {ODD} differs from worker 0 in its order at step"),
    "decisions": (
        {"order": eq.order.CDGraB(signal="exact")},
        {},
        another_decision,
        "the others in its order at step #: the hash",
    ),
    "batch": ({}, {}, another_batch, "in its batch sizes at step #: the batch of worker 2 is 5 there and 4 on"),
    "place": ({}, {}, another_place, "in its place in the data at step #: the count consumed"),
    "edge": (
        MATCHING,
        {},
        another_edge,
        "in its topology at step #: in round 18 it has a link to worker 3 with weight 0.5, and worker 3 has no such",
    ),
    "weight": (GOSSIP, {}, another_weight, "in its topology at step #: in round # it has a link"),
    "parameter": ({}, {}, another_parameter, "in its parameters at step #: 2.bias is 0x"),
    "average": (AVERAGE, {}, a_bad_average, "the others in its parameters at step"),
}


def told(name: str, comm: Comm) -> str:
    """What this worker raises."""
    alike, own, injure, _ = CASES[name]
    try:
        worker = Worker(make_job(**{**alike, **(own if comm.rank == ODD else {})}), comm)
        if comm.rank == ODD:
            injure(worker)
        worker.run()
    except Drift as error:
        return str(error) if error.rank == ODD else f"the wrong rank: {error.rank}"
    return ""


def check(name: str, lines: list[str]) -> None:
    assert len(set(lines)) == 1, f"{name}: workers say different things: {lines}"
    assert f"worker {ODD} differs from" in lines[0], f"{name}: {lines[0]!r}"
    assert re.search(re.escape(CASES[name][3]).replace(r"\#", r"\d+"), lines[0]), f"{name}: {lines[0]!r}"
    assert "\n" not in lines[0]


@pytest.mark.parametrize("name", CASES)
def test_virtual_workers_name_the_odd_one(name: str) -> None:
    check(name, spawn(lambda comm: told(name, comm), WORKERS, virtual=True))


def test_processes_name_the_odd_one() -> None:
    lines = spawn(lambda comm: [told(name, comm) for name in CASES], WORKERS, timeout=30.0)
    for name, each in zip(CASES, zip(*lines, strict=True), strict=True):
        check(name, list(each))


@pytest.mark.parametrize("where", ["train", "attach"])
def test_another_version_is_named_by_two_workers_with_both_values(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(settings: dict[str, Any]) -> dict[str, Any]:
        return passport(settings) | ({"torch": "1.0"} if current_comm().rank == ODD else {})

    monkeypatch.setattr(worker_module, "passport", odd)
    monkeypatch.setattr(attach_module, "passport", odd)

    def work(comm: Comm) -> str:
        if where == "attach":
            return own_loop(comm)
        with pytest.raises(Drift) as caught:
            Worker(make_job(), comm)
        return str(caught.value)

    line = f"worker 1 differs from worker 0 in its recipe: torch is 1.0 there and {torch.__version__} on worker 0"
    assert spawn(work, 2, virtual=True) == [line] * 2


# -- a loop of one's own ---------------------------------------------------------------------------------------------
DATASET = TensorDataset(*DATA)


def own_loop(comm: Comm, *, parameter: bool = False, batch: bool = False, sampler_seed: int = 0, **options: Any) -> str:
    model = plain()
    sampler = eq.Sampler(DATASET, batch=4, seed=sampler_seed)
    optimizer = sgd(model.parameters())
    try:
        with eq.attach(model, optimizer, sampler=sampler, **options) as together:
            for _ in sampler.epochs(8):
                for x, y in DataLoader(DATASET, batch_sampler=sampler):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                    if parameter and together.clock.step == 2:
                        with torch.no_grad():
                            model[0].weight[0, 0] += 1e-3  # type: ignore[index,operator,union-attr]
                    if batch and together.clock.step == 2:
                        sampler.batch.sizes = lambda: [4, 4, 4, 3]  # type: ignore[method-assign]
                    if not comm.virtual:
                        together.drift.next = 0  # a short run: meet at every step
    except Drift as error:
        return str(error)
    return ""


LOOPS: dict[str, tuple[dict[str, Any], str]] = {
    "parameter": ({"parameter": True}, "in its parameters at step"),
    "batch": ({"batch": True}, "in its batch sizes at step"),
    "recipe": ({"clip": 1.0}, "in its recipe: clip is 1.0 there and None on the others"),
    "order": ({"sampler_seed": 5}, "worker 1 differs from worker 0 in its order at step 1"),
}


def loops(comm: Comm) -> list[str]:
    return [own_loop(comm, **(odd if comm.rank == ODD else {})) for odd, _ in LOOPS.values()]


@pytest.mark.parametrize("workers", ["virtual", "processes", "torchrun"])
def test_an_own_loop_names_the_odd_one(workers: str) -> None:
    if workers == "torchrun":
        answers = under_torchrun(lambda rank: spawn(loops, WORKERS, timeout=30.0)[0], WORKERS)
    else:
        answers = spawn(loops, WORKERS, virtual=workers == "virtual", timeout=30.0)
    for (name, (_, text)), lines in zip(LOOPS.items(), zip(*answers, strict=True), strict=True):
        assert len(set(lines)) == 1, f"{name}: {lines}"
        assert "worker 1 differs" in lines[0], f"{name}: {lines[0]!r}"
        assert text in lines[0], f"{name}: {lines[0]!r}"


# -- workers that come and go ----------------------------------------------------------------------------------------
def test_drift_after_a_change_of_membership_is_named_by_the_number_of_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Worker.run

    def run(worker: Worker) -> Any:
        if worker.comm.worker == 2 and worker.arrival is not None:
            at_step(worker, 11, lambda: worker.flat.x[3:4].add_(1.0))
        return original(worker)

    monkeypatch.setattr(Worker, "run", run)
    job = make_job(elastic=Elasticity(2, 4, snapshot_every=2), changes=[Change(0, "lose", step=6)])
    with pytest.raises(Drift, match="worker 2 differs from the others in its parameters at step 12"):
        run_job(job, WORKERS, virtual=True, cluster=None, deterministic=True, timeout=30.0)


@pytest.mark.parametrize("virtual", [True, False], ids=["virtual", "processes"])
def test_a_newcomer_with_another_version_stays_outside(
    virtual: bool, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    import signal

    from equipoise.loop import generations

    from .churn import arrange

    monkeypatch.setattr(generations, "passport", lambda settings: passport(settings) | {"equipoise": "0.0"})
    changes = [Change(1, "lose", step=5), Change(1, "join", step=8)] if virtual else []
    if not virtual:
        arrange(monkeypatch, {1: (5, signal.SIGKILL)})
    elastic = Elasticity(2, 4, deadline=10.0, snapshot_every=2, respawn=0 if virtual else 1)
    job = make_job(elastic=elastic, changes=changes)
    result = run_job(job, WORKERS, virtual=virtual, cluster=None, deterministic=True, timeout=30.0).result
    assert result["steps"] == 30
    assert [row["members"] for row in result["membership"]] == [[0, 2, 3]]


# -- what is promised ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wire", [None, eq.wire.Int8(), eq.wire.TopK(keep=0.25)], ids=repr)
def test_syncs_that_promise_equal_models_keep_the_promise(wire: Any) -> None:
    """And others promise nothing: after local steps their models differ."""

    def work(comm: Comm) -> dict[str, tuple[bool, int]]:
        marks = {}
        for sync in (eq.sync.AllReduce(), eq.sync.PeriodicAverage(), eq.sync.SlowMo(), eq.sync.DiLoCo()):
            chosen = (
                {"sync": sync, "length": Length(steps=12), "wire": wire}
                if wire
                else {"sync": sync, "length": Length(steps=12)}
            )
            worker = Worker(make_job(period=1 if isinstance(sync, eq.sync.AllReduce) else 3, **chosen), comm)
            worker.run()
            marks[type(sync).__name__] = worker.sync.equal_after_round(), fold(worker.flat.gather())
        return marks

    rows = spawn(work, 3, virtual=True)
    for name in rows[0]:
        # What a wire leaves out stays in the models, unless gradients travel.
        promised = getattr(wire, "residual", "") != "model" or name == "AllReduce"
        assert [row[name][0] for row in rows] == [promised] * 3, name
        assert (len({row[name][1] for row in rows}) == 1) == promised, name


def test_a_fold_sees_every_element_and_every_bit() -> None:
    for length in (1, 3, 8, 509 * 4 + 5):
        x = torch.randn(length, generator=torch.Generator().manual_seed(0))
        seen = {fold(x)}
        for place in {0, length // 2, length - 1}:
            for bit in (0, 11, 30):
                other = x.clone()
                other.view(torch.int32)[place] ^= 1 << bit
                seen.add(fold(other))
        assert len(seen) == 1 + 3 * len({0, length // 2, length - 1})
    assert fold(torch.ones(5, dtype=torch.bfloat16)) != fold(torch.zeros(5, dtype=torch.bfloat16))


def test_a_row_holds_hashes_exactly() -> None:
    def work(comm: Comm) -> np.ndarray:
        worker = Worker(make_job(**GOSSIP), comm)
        return np.array(worker.drift.row())

    for row in spawn(work, 2, virtual=True):
        assert row.shape == (COLUMNS,)
        assert (row == np.floor(row)).all()
        assert row.max() < 2**53
