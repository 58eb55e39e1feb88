"""How fast the workers are, and what follows from it: block sizes, batch sizes, the time of an epoch.

A worker's speed is the examples per second of its real step: a few steps to warm up, then the median of several
timings, taken by all workers at the same time, because workers on one machine slow each other down.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ..core.device import placed
from ..core.errors import UserError
from ..core.spread import spread
from ..data.training_loss import moved

if TYPE_CHECKING:
    from ..comm.base import Comm
    from .job import Job


@dataclass(frozen=True)
class Timing:
    """How a step is timed: steps before, steps in one timing, timings of which the median counts.

    seconds: that a timing takes at least, with more steps if need be.
    """

    warmup: int = 3
    steps: int = 5
    repetitions: int = 5
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("warmup", 0), ("steps", 1), ("repetitions", 1), ("seconds", 0)):
            if getattr(self, name) < least:
                raise UserError(f"{name} = {getattr(self, name)}: at least {least} is needed")


class Rate(NamedTuple):
    """Examples per second of one worker."""

    median: float
    spread: float  # between the quartiles of the repetitions, relative to the median


def measure_speeds(
    step: Callable[[], Any], *, examples: float = 1.0, comm: Comm | None = None, **timing: int
) -> list[float]:
    """Relative speeds of all workers, the slowest being 1; every worker calls it and gets the same list.

    step: one real training step without communication: forward, backward, optimizer.
    examples: in one such step of this worker, where workers try different batch sizes.
    timing: warmup = 3 steps, then repetitions = 5 timings of steps = 5, whose median counts.

    >>> speeds = eq.measure_speeds(lambda: train_on(next(batches)), examples=32)   # on every worker
    """
    rates = measure_rates(step, examples, comm, Timing(**timing))
    return [rate / min(rates) for rate in rates]


def measure_rates(
    step: Callable[[], Any], examples: float, comm: Comm | None = None, timing: Timing | None = None
) -> list[float]:
    """Examples per second of all workers."""
    return [rate.median for rate in repeated_rates(step, examples, comm, timing)]


def repeated_rates(
    step: Callable[[], Any], examples: float, comm: Comm | None = None, timing: Timing | None = None
) -> list[Rate]:
    """The same, and how far the repetitions are apart."""
    from ..comm.base import barrier
    from ..comm.current import current_comm

    timing = timing or Timing()
    if not examples > 0:
        raise UserError(f"examples = {examples}: say how many examples a step takes")
    comm = comm or current_comm()
    for _ in range(timing.warmup):
        step()
    timings = []  # seconds of one step
    for _ in range(timing.repetitions):
        barrier(comm)
        started, steps, spent = time.perf_counter(), 0, 0.0
        while steps < timing.steps or spent < timing.seconds:
            step()
            steps += 1
            spent = time.perf_counter() - started
        timings.append(spent / steps)
    median = statistics.median(timings)
    rates = comm.gather_objects(Rate(examples / median, spread(timings)) if median > 0 else None)
    if any(rate is None for rate in rates):
        raise UserError("the step took no time on some worker: nothing can be said of its speed; make it do real work")
    return rates


class Work:
    """What this process does from here on: a machine that is declared slower takes so many times longer for it, but
    not for the time that other processes keep the processors busy.
    """

    def __init__(self) -> None:
        self.started, self.worked = time.perf_counter(), time.process_time()

    def slow_down(self, times: float) -> None:
        if times > 1.0:
            busy = min(time.perf_counter() - self.started, time.process_time() - self.worked)
            time.sleep((times - 1.0) * busy)


def job_rates(job: Job, comm: Comm, batch: int | None = None) -> list[float]:
    """Examples per second of a job's own step on every worker; simulated ones where a cluster is described.

    batch: of this worker; one size for all if left out.
    """
    return [rate.median for rate in repeated_job_rates(job, comm, batch=batch)]


def settled_rates(job: Job, comm: Comm) -> list[float]:
    """The same where batches will be proportional to the rates: each worker's at the batch that it will have.

    A step costs a_j + c_j b, so a small batch costs more per example: a slow worker is slower still with the small
    batch that it gets for being slow. Two sizes are timed, and

        b_j = (T - a_j) / c_j,  sum_j b_j as wanted

    are the batches with which all steps take the same time T.
    """
    rates = job_rates(job, comm)
    if comm.virtual or not job.batch.spreads:
        return rates
    mean = _mean_size(job)
    small = max(1, mean // 4)
    if small == mean:
        return rates
    short = [small / rate for rate in job_rates(job, comm, small)]
    # Again: the first steps of a process are slower, and the difference of both is what counts.
    long = [mean / rate for rate in job_rates(job, comm)]
    return balanced_rates(mean, small, long, short)


def balanced_rates(mean: int, small: int, long: list[float], short: list[float]) -> list[float]:
    """Examples per second at the batches, `mean` on average, whose steps take all workers the same time.

    long, short: seconds of a step with `mean` and with `small` examples, by worker.
    """
    slopes = [max((a - b) / (mean - small), 1e-3 * a / mean) for a, b in zip(long, short, strict=True)]
    fixed = [max(0.0, a - slope * mean) for a, slope in zip(long, slopes, strict=True)]

    def sizes(seconds: float) -> list[float]:
        # A worker whose fixed cost is too high for any batch still takes an example.
        return [max(1.0, (seconds - a) / c) for a, c in zip(fixed, slopes, strict=True)]

    low, high = 0.0, max(a + c * mean * len(long) for a, c in zip(fixed, slopes, strict=True))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(sizes(middle)) < mean * len(long) else (low, middle)
    return [b / high for b in sizes(high)]


def repeated_job_rates(job: Job, comm: Comm, timing: Timing | None = None, batch: int | None = None) -> list[Rate]:
    """The same, and how far repetitions are apart.

    The step is taken on a model of its own, so that nothing of the training changes.
    """
    from ..core.random import rng_state, set_rng_state

    slow = job.slow_down(comm)
    if comm.virtual:
        # Virtual workers take turns on one processor: only their simulated clock tells them apart. A step alone: many
        # would say how fast a worker is going to be, not how fast it is.
        examples = _mean_size(job)
        with comm.uncounted():
            return comm.gather_objects(Rate(examples / comm.computed(examples * slow), 0.0))
    kept = rng_state()
    try:
        # The same on all workers where nothing else is said: unlike batches are compared at unlike efficiency.
        examples = min(len(job.train), _mean_size(job) if batch is None else batch)
        step = _job_step(job, comm, slow, examples)
        with comm.uncounted():
            return repeated_rates(step, examples, comm, timing)
    finally:
        set_rng_state(kept)


def _mean_size(job: Job) -> int:
    given = [getattr(job.batch, name, None) for name in ("size", "mean", "start")]
    sizes = [np.max(value) for value in given if isinstance(value, (int, list))]
    return int(sizes[0]) if sizes else 32


def _job_step(job: Job, comm: Comm, slow: float, count: int) -> Callable[[], Any]:
    device = job.device if comm.virtual else placed(job.device, comm.worker)
    model = job.model().to(device).train()
    optimizer = job.optimizer(model.parameters())
    stream = np.random.default_rng([job.seed, 61, comm.rank])

    def step() -> None:
        work = Work()
        batch = moved(job.train.batch(stream.integers(len(job.train), size=count)), device)
        with torch.autocast(device.type, dtype=job.autocast, enabled=job.autocast is not None):
            loss = job.training_loss(model, batch)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        loss.item()  # waits for a device that works in the background
        work.slow_down(slow)
        optimizer.step()

    return step
