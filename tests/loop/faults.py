"""One worker's numbers go bad: a loop like that of `Worker`, into which faults are put at given steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.config.defaults import chosen_period
from equipoise.core.finite import first_not_finite, tensors_in
from equipoise.data.source import Source
from equipoise.launch.start import spawn
from equipoise.loop.gradient import backward
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker

from .problem import INPUTS, TARGETS, plain

WORKERS, BAD = 4, 1
EVERYBODY = -1
KINDS = ("loss", "gradient inf", "gradient nan", "parameters", "state")
PASSING = KINDS[:3]  # those that have changed nothing yet


def job(sync: Any, nonfinite: str, **more: Any) -> Job:
    period = more.pop("period", 1 if sync.needs().every_step else 2)
    return Job(
        model=more.pop("model", plain),
        loss=cross_entropy,
        train=Source((INPUTS, TARGETS)),
        length=Length(steps=100),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5),
        batch=eq.batch.Fixed(2),
        period=chosen_period(period),
        sync=sync,
        nonfinite=nonfinite,
        **more,
    )


def turn(worker: Worker, fault: str | None) -> None:
    """`Worker.step`, with a fault after the backward pass."""
    if worker.position.steps_left == 0:
        worker.clock.epoch += 1
        worker.position.begin(worker.clock.epoch)
    step = worker.stepper
    step.depart()
    worker.indices, places = worker.position.take()
    step.begin(len(worker.indices), worker.position.largest)
    loss = backward(worker, worker.indices).loss
    step.computed(len(worker.indices) * worker.cost, 0.0)
    if fault == "loss":
        loss = math.nan
    elif fault is not None:
        spoil(worker, fault)
    if step.before(loss, places, worker.indices.tolist()):
        worker.optimizer.step()
    step.after()


@torch.no_grad()
def spoil(worker: Worker, fault: str) -> None:
    if fault.startswith("gradient"):
        last = list(worker.model.parameters())[-1]
        last.grad.view(-1)[0] = float(fault.split()[1])
    elif fault == "parameters":
        worker.flat.x[3] = math.nan
    elif fault == "buffers":
        next(b for b in worker.model.buffers() if b.is_floating_point()).fill_(math.inf)
    else:
        sync, optimizer = worker.sync, worker.optimizer
        kept = [getattr(sync, name) for name in sync.STATE if name not in sync.in_flight]
        kept.append(worker.wire.channel_states)
        tensors = [t for _, t in tensors_in(kept) if t.is_floating_point()]
        for t in tensors or [t for _, t in tensors_in(optimizer.state_dict()["state"]) if t.ndim]:
            t.view(-1)[-1] = math.nan


def not_finite(worker: Worker) -> str | None:
    """Where a worker holds a number that is not finite."""
    step = worker.stepper
    held = worker.model.state_dict(), worker.optimizer.state_dict()["state"], worker.wire.channel_states
    return first_not_finite([*held, step.sync_state()])


def run(
    chosen: Job,
    steps: int,
    faults: dict[int, str],
    look: Callable[[Worker, int], Any] = lambda worker, step: None,
    *,
    who: int = BAD,
    virtual: bool = True,
) -> list[tuple[Worker, list[Any], list[Any]]]:
    """`steps` steps, some of which spoil the worker `who`: of every worker what `look` saw after each, its events."""

    def work(comm: Any) -> Any:
        worker, seen = Worker(chosen, comm), []
        events: list[Any] = []
        worker.observer.emit = lambda event, **fields: events.append((event, worker.clock.step + 1, fields))  # type: ignore[method-assign]
        worker.model.train()
        for number in range(1, steps + 1):
            turn(worker, faults.get(number) if who in (comm.rank, EVERYBODY) else None)
            seen.append(look(worker, number))
        worker.sync.finish()
        return (worker if virtual else None), seen, events

    return spawn(work, WORKERS, virtual=virtual, deterministic=True, timeout=30.0)
