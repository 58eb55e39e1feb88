"""Speeds measured again between epochs, and examples redistributed where the time that saves exceeds what it costs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from ..core.context import describe
from .blocks import shared_blocks, speeds_are_measured, with_speeds
from .position import Position

if TYPE_CHECKING:
    from .worker import Worker


def pays(sizes: list[int], rates: list[float], epochs_left: float, cost: float) -> bool:
    """Is the time that proportional blocks save in the epochs to come more than `cost` seconds?

    now: max_j n_j / r_j per epoch;   proportional: n / sum(r)
    """
    now = max(n / r for n, r in zip(sizes, rates, strict=True))
    then = sum(sizes) / sum(rates)
    # A hundredth is less than measurements repeat to: blocks that good are left alone.
    return now > 1.01 * then and (now - then) * epochs_left > cost


def rebalance(worker: Worker) -> None:
    """Called by all workers together before an epoch begins."""
    partition, comm, job = worker.job.partition, worker.comm, worker.job
    every = getattr(partition, "remeasure", 0)
    if not every or not speeds_are_measured(partition) or worker.clock.epoch % every:
        return
    from .speeds import settled_rates

    assert isinstance(worker.position, Position)
    started = time.perf_counter()
    rates = settled_rates(job, comm)
    sizes = [len(block) for block in worker.position.blocks]
    # What the last division cost says what the next one will; simulated workers get it for nothing.
    cost = 0.0 if comm.virtual else comm.gather_objects(job.division_seconds + time.perf_counter() - started)[0]
    paid = pays(sizes, rates, epochs_left(worker), cost)
    worker.observer.emit("speeds", rates=rates, divided=paid)
    if not paid:
        return
    adopt(worker, shared_blocks(with_speeds(partition, rates), job.train.view(), comm, job.seed))
    job.division_seconds = time.perf_counter() - started


def epochs_left(worker: Worker) -> float:
    """To the end of the run, as far as its length tells; one where only a budget ends it."""
    length, clock = worker.job.length, worker.clock
    left = [np.inf]
    if length.epochs is not None:
        left.append(length.epochs - clock.epoch)
    if length.samples is not None:
        left.append((length.samples - worker.position.consumed) / len(worker.job.train))
    if length.steps is not None:
        left.append((length.steps - clock.step) / max(1, clock.step) * clock.epoch)
    return max(0.0, min(left)) if len(left) > 1 else 1.0


def adopt(worker: Worker, blocks: list[np.ndarray]) -> None:
    """Go on with other blocks; batch sizes follow."""
    job, context, position = worker.job, worker.context, worker.position
    assert isinstance(position, Position)
    context.redescribe(describe(worker.comm, seed=job.seed, sizes=[len(block) for block in blocks]))
    position.blocks, position.block = blocks, blocks[context.rank]
    position.order = job.order.bind(context)
    if worker.batch.watches:
        worker.batch.follow_blocks()
    else:
        position.batch = job.batch.bind(context)
    worker.stepper.follow(position.order, position.batch)
