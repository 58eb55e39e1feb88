"""16 virtual workers compared with 16 plain steps, and their memory: 1M-parameter MLP, batch 32, momentum SGD.

The plain steps are those of 16 models in one loop on one thread. An all-reduce also sums 16 gradients, which plain
steps do not: a second ratio compares with plain steps whose gradients are averaged by hand.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable

import torch
from common import arguments, images, median_ratio, mlp, report, sgd
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker

INPUTS, TARGETS = images()
LOSS = nn.CrossEntropyLoss()


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def plain(workers: int) -> Callable[[bool], None]:
    """One step of each of `workers` models; `average` their gradients by hand before the optimizers step."""
    models = [mlp() for _ in range(workers)]
    optimizers = [sgd(m.parameters()) for m in models]

    def step(average: bool) -> None:
        for model, optimizer in zip(models, optimizers, strict=True):
            index = torch.randint(len(INPUTS), (32,))
            optimizer.zero_grad()
            LOSS(model(INPUTS[index]), TARGETS[index]).backward()
            if not average:
                optimizer.step()
        if average:
            with torch.no_grad():
                for tensors in zip(*(m.parameters() for m in models), strict=True):
                    total = tensors[0].grad.clone()
                    for p in tensors[1:]:
                        total += p.grad
                    total /= workers
                    for p in tensors:
                        p.grad.copy_(total)
            for optimizer in optimizers:
                optimizer.step()

    return step


def measure(sync: eq.sync.Sync, period: int, args: object, average: bool) -> tuple[list[float], list[float], int]:
    """Seconds of ours and of the plain loop, a block of each in turn, and the memory that ours grew by."""
    workers, block, repetitions = args.workers, args.block, args.repetitions  # type: ignore[attr-defined]
    job = Job(
        model=mlp,
        loss=LOSS,
        train=Source((INPUTS, TARGETS)),
        length=Length(epochs=1000),
        optimizer=sgd,
        sync=sync,
        period=eq.period.Every(period),
    )
    step = plain(workers)
    step(average)
    gc.collect()
    before = resident()
    mine, hand, memory = [], [], []

    def loop(comm: Comm) -> None:
        worker = Worker(job, comm)
        worker.model.train()
        for turn in range(repetitions + 1):
            comm.gather_objects(None)
            start = time.perf_counter()
            for _ in range(block):
                if worker.position.steps_left == 0:
                    worker.clock.epoch += 1
                    worker.position.begin(worker.clock.epoch)
                worker.control.after(worker.step())
            comm.gather_objects(None)
            if comm.rank == 0:
                ours = time.perf_counter() - start
                memory.append(resident() - before)
                start = time.perf_counter()
                for _ in range(block):
                    step(average)
                if turn:
                    mine.append(ours / block)
                    hand.append((time.perf_counter() - start) / block)

    eq.spawn(loop, workers, virtual=True)
    return mine, hand, max(memory)


def main() -> None:
    args = arguments(__doc__, workers=16, block=24, repetitions=5)
    torch.set_num_threads(1)
    vector = sum(p.numel() for p in mlp().parameters()) * 4
    rows = []
    for name, sync, period, average, goal in (
        ("all-reduce every step / plain steps", eq.sync.AllReduce(), 1, False, 1.15),
        ("all-reduce every step / plain steps averaged by hand", eq.sync.AllReduce(), 1, True, 1.15),
        ("average every 8 steps / plain steps", eq.sync.PeriodicAverage(), 8, False, 1.15),
        ("no communication / plain steps", eq.sync.NoSync(), 1, False, 1.15),
    ):
        mine, hand, memory = measure(sync, period, args, average)
        print(f"{name}: {1e3 * statistics.median(mine):.1f} ms, {1e3 * statistics.median(hand):.1f} ms")
        rows.append((name, median_ratio(mine, hand), goal))
        if average:
            # Model, gradient and momentum are what a plain loop of each worker would hold.
            extra = memory / (vector * args.workers) - 3
            rows.append(("vectors per worker beyond model, gradient and momentum", extra, 1.0))
    report(f"{args.workers} virtual workers", rows, args.json)


if __name__ == "__main__":
    main()
