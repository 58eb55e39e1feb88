"""Every sync through every wire: refused in one line, or it trains, resumes, and sends what it declares, to the bit.

A pair runs once on 4 virtual workers: its ledger is compared with the declared cost at every step, and its state is
kept in memory in the middle. All pairs of one wire run in one group of processes, one after the other.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.config import registry
from equipoise.config.defaults import chosen_batch, chosen_period
from equipoise.config.fit import check_fit
from equipoise.core.errors import CheckpointError, UserError
from equipoise.core.vector import Flat
from equipoise.data.source import Source
from equipoise.loop.evaluate import swapped, undisturbed, vector_of
from equipoise.loop.job import Job, Length
from equipoise.loop.result import counters
from equipoise.loop.state import put_back, state_of
from equipoise.loop.worker import Worker
from equipoise.testing.promises import BITS, same

from . import toy

LONG = 12  # steps to a lower loss
MODEL = toy.model()

S = eq.sync
SYNCS = {name: registry.get("sync", name)() for name in registry.names("sync")} | {
    "diloco-in-3-fragments": S.DiLoCo(fragments=3),
    "diloco-delayed": S.DiLoCo(delay=1, fragments=2),
    "diloco-delayed-by-2": S.DiLoCo(delay=2, fragments=2),
    "d-psgd-overlapped": S.DPSGD(combine="before", overlap=True),
    "detag-frozen": S.DeTAG(frozen=True),
    "detag-overlapped": S.DeTAG(frozen=True, overlap=True),
    "gossip-pga-every-2": S.GossipPGA(every=2),
    "k-gt-one-peer": S.KGT(eq.topology.OnePeer()),
    "lsgd-in-2-groups": S.LSGD(groups=2),
}
WIRES = {name: toy.make("wire", name) for name in registry.names("wire")}
NARROW = [name for name, wire in WIRES.items() if not wire.plain]


def period_of(sync: str) -> Any:
    if SYNCS[sync].needs().every_step or getattr(SYNCS[sync], "overlap", False):
        return chosen_period(1)
    return chosen_period(3 if delay_of(sync) > 1 else 2)


def delay_of(sync: str) -> int:
    return getattr(SYNCS[sync], "delay", 0) if sync.startswith("diloco") else 0


def saved_at(sync: str) -> int:
    """A step inside a round, or one after which a delayed message is in flight."""
    return int(period_of(sync).steps) if delay_of(sync) else 3


def short_of(sync: str) -> int:
    """Steps to the end of the next round after that."""
    return 4 + delay_of(sync)


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    """Longer steps than the toy's, and fewer: there are many pairs."""
    return torch.optim.SGD(parameters, lr=0.5)


def refusal(wire: str, sync: str, workers: int = toy.WORKERS) -> UserError | None:
    try:
        check_fit(period=period_of(sync), sync=SYNCS[sync], wire=WIRES[wire], workers=workers)
    except UserError as error:
        return error
    return None


PAIRS = [(wire, sync) for wire in NARROW for sync in SYNCS]
FITTING = [pytest.param(*pair, id="-".join(pair)) for pair in PAIRS if refusal(*pair) is None]
REFUSED = [pytest.param(*pair, id="-".join(pair)) for pair in PAIRS if refusal(*pair) is not None]


# One wire for each way of summing runs with every sync also on processes and on other world sizes; the others, which
# share that code, with one sync for each way of using a channel: a sum, one that overlaps with steps, messages to all,
# replicas of neighbours, replicas and trackers, messages along a tree, pairs.
SUMMED = {"int4": "all-to-all", "top-k": "all-gather", "power-sgd": "all-reduce"}
FAMILIES = ("all-reduce", "diloco-delayed", "lsgd", "d-psgd", "dsgt", "relay", "ad-psgd")
WIDELY = [pair for pair in FITTING if pair.values[0] in SUMMED or pair.values[1] in FAMILIES]


def job_of(wire: str, sync: str) -> Job:
    return Job(
        lambda: copy.deepcopy(MODEL),
        nn.CrossEntropyLoss(),
        Source((toy.INPUTS, toy.TARGETS)),
        Length(steps=LONG),
        optimizer,
        batch=chosen_batch(8),
        period=period_of(sync),
        sync=SYNCS[sync],
        wire=WIRES[wire],
    )


def go_on(worker: Worker, step: int, each: Callable[[Worker], None] = Worker.step) -> None:  # type: ignore[assignment]
    while worker.clock.step < step:
        if worker.position.steps_left == 0:
            worker.clock.epoch += 1
            worker.position.begin(worker.clock.epoch)
        each(worker)


def counted_step(delay: int) -> Callable[[Worker], None]:
    """One step; the ledger grows by the declared cost, that of a delayed message when it arrives."""
    in_flight: list[tuple[int, int]] = []

    def step(worker: Worker) -> None:
        comm, rounds = worker.comm, worker.clock.rounds
        messages, sent = comm.ledger.messages, comm.ledger.bytes
        worker.step()
        counted = comm.ledger.messages - messages, comm.ledger.bytes - sent
        in_flight.append(worker.sync.cost(worker.context.model_size, comm.rank, comm.size, worker.clock.due, rounds))
        declared = in_flight.pop(0) if len(in_flight) > delay else (0, 0)
        where = f"rank {comm.rank} of {comm.size}, step {worker.clock.step}"
        assert counted == declared, f"{where}: sent {counted} (messages, bytes), declared {declared}"

    return step


def short_run(wire: str, sync: str, comm: Comm) -> dict[str, Any]:
    comm.ledger.load_state_dict({"messages": 0, "bytes": 0})  # the group has run other pairs before
    worker = Worker(job_of(wire, sync), comm)
    go_on(worker, short_of(sync))
    end = counters(worker.stepper)
    worker.sync.finish()
    return end


@cache
def trained(wire: str, sync: str) -> dict[str, Any]:
    """The state in the middle (by rank), the end of a short run, and the loss of the mean model after a long one."""
    job = job_of(wire, sync)

    def run(comm: Comm) -> dict[str, Any]:
        worker = Worker(job, comm)
        step = counted_step(delay_of(sync))
        go_on(worker, saved_at(sync), step)
        saved = io.BytesIO()
        torch.save(state_of(worker), saved)
        go_on(worker, short_of(sync), step)
        end = counters(worker.stepper)
        go_on(worker, LONG, step)
        worker.sync.finish()
        mean = vector_of(worker.stepper, "mean")
        assert mean is not None
        with undisturbed(worker.model), swapped(worker.stepper, mean, own=False), torch.no_grad():
            loss = nn.functional.cross_entropy(worker.model.eval()(toy.INPUTS), toy.TARGETS).item()
        return {"saved": saved, "end": end, "loss": loss, "bytes": comm.ledger.bytes}

    rows = eq.spawn(run, toy.WORKERS, virtual=True)
    return {**rows[0], "saved": [row["saved"] for row in rows], "bytes": sum(row["bytes"] for row in rows)}


def declared(sync: str, wire: Any) -> int:
    """Bytes of all workers in four rounds."""
    size = Flat(toy.model()).size._replace(wire=wire)
    return sum(SYNCS[sync].cost(size, rank, toy.WORKERS, True, round)[1] for rank in range(4) for round in range(4))


@cache
def on_processes(wire: str) -> dict[str, dict[str, Any]]:
    """The ends of all short runs through one wire, in one group."""
    pairs = [pair.values for pair in WIDELY]

    def run(comm: Comm) -> dict[str, dict[str, Any]]:
        return {sync: short_run(wire, sync, comm) for with_wire, sync in pairs if with_wire == wire}

    ends: dict[str, dict[str, Any]] = eq.spawn(run, toy.WORKERS, deterministic=True, timeout=60)[0]
    return ends


@pytest.mark.parametrize(("wire", "sync"), REFUSED)
def test_refused_in_one_line(wire: str, sync: str) -> None:
    error = refusal(wire, sync)
    assert error is not None
    assert "\n" not in str(error)
    assert f"wire {wire}:" in str(error)
    assert type(SYNCS[sync]).__name__ in str(error)
    assert ": use " in str(error)
    assert str(error).endswith("float32"), "what always fits"
    suggested = [name for name in NARROW if name in str(error).rpartition(": use ")[2].replace(",", "").split()]
    assert all(refusal(name, sync) is None for name in suggested)
    with pytest.raises(UserError, match="cannot send through wire"):
        toy.train(SYNCS[sync], wire=WIRES[wire], period=period_of(sync), steps=1)


@pytest.mark.parametrize(("wire", "sync"), FITTING)
def test_trains_and_sends_what_it_declares(wire: str, sync: str) -> None:
    before = nn.functional.cross_entropy(toy.model().eval()(toy.INPUTS), toy.TARGETS).item()
    after = trained(wire, sync)["loss"]  # the ledger is compared with the cost at every step
    assert declared(sync, WIRES[wire]) < declared(sync, None)
    assert after < 0.8 * before, f"the loss fell from {before:.3f} to {after:.3f} only"


@pytest.mark.parametrize(("wire", "sync"), FITTING)
def test_resumes_to_the_same_bits(wire: str, sync: str) -> None:
    job, files = job_of(wire, sync), trained(wire, sync)["saved"]

    def run(comm: Comm) -> dict[str, Any]:
        worker = Worker(job, comm)
        files[comm.rank].seek(0)
        put_back(worker, torch.load(files[comm.rank], weights_only=True))
        go_on(worker, short_of(sync))
        end = counters(worker.stepper)
        worker.sync.finish()
        return end

    same(eq.spawn(run, toy.WORKERS, virtual=True)[0], trained(wire, sync)["end"], BITS)


def test_every_way_of_summing_is_covered() -> None:
    assert {name: WIRES[name].collective() for name in SUMMED} == SUMMED
    assert {wire.collective() for wire in WIRES.values()} == set(SUMMED.values())


@pytest.mark.parametrize(("wire", "sync"), WIDELY)
def test_processes_give_the_bits_of_virtual_workers(wire: str, sync: str) -> None:
    same(on_processes(wire)[sync], trained(wire, sync)["end"], BITS)


@pytest.mark.parametrize(("wire", "sync"), WIDELY)
def test_sends_what_it_declares_on_other_world_sizes(wire: str, sync: str) -> None:
    job = job_of(wire, sync)
    delay = delay_of(sync)
    if not delay:
        job.period = chosen_period(1)
    for workers in (2, 3):
        if refusal(wire, sync, workers) is None:
            eq.spawn(lambda comm: go_on(Worker(job, comm), 2 + delay, counted_step(delay)), workers, virtual=True)


@pytest.mark.parametrize("sync", ["all-reduce", "diloco-delayed", "d-psgd", "lsgd"])
@pytest.mark.parametrize("wire", ["int4", "top-k", "power-sgd"])
def test_own_loop_gives_the_bits_of_train(wire: str, sync: str) -> None:
    chosen = {"wire": WIRES[wire], "period": period_of(sync), "steps": 6}
    same(toy.attach(SYNCS[sync], **chosen), toy.train(SYNCS[sync], **chosen).result, BITS)


def test_a_checkpoint_agrees_on_the_wire(tmp_path: Path) -> None:
    toy.train(S.PeriodicAverage(), wire=eq.wire.Float16(), steps=3, out=tmp_path)
    with pytest.raises(CheckpointError, match="wire.name: float16 in the checkpoint, bfloat16 now"):
        toy.train(S.PeriodicAverage(), wire=eq.wire.BFloat16(), steps=6, out=tmp_path, resume=True)
