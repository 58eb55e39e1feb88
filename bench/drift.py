"""What it costs that workers compare hashes: processor time of a check against that of a training step.

    python bench/drift.py

Both are measured within one run, on one thread: a row of hashes with that of the parameters, and its judgement, against
a step with a batch of 32. A run makes a check every 10 steps, or each half second if ten steps take longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from elastic import adam, convolutions, make_job, mlp, sgd

import equipoise as eq
from equipoise.comm.virtual import World
from equipoise.loop.worker import Worker

REPEATS, EVERY = 50, 10


def timed(function: Callable[[], object]) -> float:
    began = time.thread_time()
    for _ in range(REPEATS):
        function()
    return (time.thread_time() - began) / REPEATS


def cost(job: Any, workers: int) -> tuple[float, float]:
    """Processor seconds of a step and of a check, of one of so many workers."""

    def loop(comm: Any) -> tuple[float, float]:
        worker = Worker(job, comm)

        def step() -> None:
            if worker.position.steps_left == 0:
                worker.clock.epoch += 1
                worker.position.begin(worker.clock.epoch)
            worker.step()

        def check() -> None:
            worker.drift.after_step()
            row = worker.drift.row()
            table = np.array([row] * comm.size)
            table[:, -2:] = 0.0  # links add up over unlike workers only
            table[:, -4:-2] = 0.0
            worker.drift.judge(table)

        for _ in range(3):
            step()
        each = timed(step)
        worker.clock.due = True  # so that the parameters are hashed
        return each, timed(check)

    return World(workers).run(loop)[0]  # type: ignore[no-any-return]


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'model, sync, workers':34}{'parameters':>12}{'step':>10}{'check':>10}{'ratio':>8}{'every 10':>10}")
    average, ring = {"period": eq.period.Every(4), "sync": eq.sync.PeriodicAverage()}, {"sync": eq.sync.DPSGD()}
    drawn = {"sync": eq.sync.MATCHA()}
    for name, model, shape, optimizer, chosen, workers in (
        ("mlp 64, all-reduce, 4", mlp(64), (64,), sgd, {}, 4),
        ("mlp 64, d-psgd, 4", mlp(64), (64,), sgd, ring, 4),
        ("mlp 64, matcha, 8", mlp(64), (64,), sgd, drawn, 8),
        ("mlp 1000, all-reduce, 4", mlp(1000), (64,), sgd, {}, 4),
        ("mlp 1000 adam, average, 4", mlp(1000), (64,), adam, average, 4),
        ("mlp 3000, all-reduce, 2", mlp(3000), (64,), sgd, {}, 2),
        ("convolutions, all-reduce, 4", convolutions, (1, 28, 28), sgd, {}, 4),
    ):
        step, check = cost(make_job(model, shape, optimizer, elastic=None, **chosen), workers)
        size = sum(p.numel() for p in model().parameters())
        row = f"{name:34}{size:>12,}{1e3 * step:>7.2f} ms{1e3 * check:>7.3f} ms"
        print(f"{row}{check / step:>8.1%}{check / step / EVERY:>10.2%}", flush=True)


if __name__ == "__main__":
    main()
