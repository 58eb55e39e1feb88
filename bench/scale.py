"""Many virtual workers in one process: time and memory per worker-step from 16 to 1,024 of them.

A small model (an MLP of about 2,400 parameters on 16 features), batch 8, SGD with momentum. The cost is linear where the time of one
worker's step does not depend on how many workers there are.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable

import torch
from common import arguments, report, sgd
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker

SIZES = (16, 64, 256, 1024)
METHODS: dict[str, tuple[Callable[[], eq.sync.Sync], int]] = {
    "none": (eq.sync.NoSync, 1),
    "periodic-average, period 8": (eq.sync.PeriodicAverage, 8),
    "all-reduce": (eq.sync.AllReduce, 1),
    "d-psgd ring": (eq.sync.DPSGD, 1),
}


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 20))


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cluster_of(workers: int) -> eq.Cluster:
    """Unequal workers on a limited network: nothing may be cheap because nothing is simulated."""
    return eq.Cluster([1000.0 + 10 * (k % 7) for k in range(workers)], eq.Link("100 Mbit", "1 ms"), jitter=0.1)


def measure(workers: int, sync: eq.sync.Sync, period: int, block: int, repetitions: int) -> tuple[float, int]:
    """Median seconds of a worker-step, with logging and control as in a run, and the memory that all workers took."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(workers * 8 * 16, 16, generator=generator)
    job = Job(
        model=small,
        loss=nn.CrossEntropyLoss(),
        train=Source((inputs, torch.randint(20, (len(inputs),), generator=generator))),
        length=Length(epochs=1000),
        optimizer=sgd,
        batch=eq.batch.Fixed(8),
        sync=sync,
        period=eq.period.Every(period),
        described=True,
    )
    job.blocks = job.partition.blocks(job.train.view(), workers, 0)  # once for all, as `eq.train` does
    gc.collect()
    before, seconds, memory = resident(), [], []

    def loop(comm: Comm) -> None:
        worker = Worker(job, comm)
        worker.model.train()
        for turn in range(repetitions + 1):
            comm.gather_objects(None)
            started = time.perf_counter()
            for _ in range(block):
                if worker.position.steps_left == 0:
                    worker.clock.epoch += 1
                    worker.position.begin(worker.clock.epoch)
                worker.control.after(worker.step())
            comm.gather_objects(None)
            if comm.rank == 0:
                if turn:
                    seconds.append((time.perf_counter() - started) / block / workers)
                memory.append(resident() - before)

    eq.spawn(loop, workers, virtual=True, cluster=cluster_of(workers))
    return statistics.median(seconds), max(memory)


def main() -> None:
    args = arguments(__doc__, block=8, repetitions=3, most=1024)
    torch.set_num_threads(1)
    models = 3 * 4 * sum(p.numel() for p in small().parameters())  # model, gradient, momentum of a worker
    sizes = [size for size in SIZES if size <= args.most]
    rows: list[tuple[str, float, float | None]] = []
    print(
        f"{'microseconds per worker-step':<30}"
        + "".join(f"{size:>8}" for size in sizes)
        + "   to 16   MB beyond models"
    )
    for name, (sync, period) in METHODS.items():
        found = [measure(size, sync(), period, args.block, args.repetitions * max(1, 64 // size)) for size in sizes]
        ratio, extra = found[-1][0] / found[0][0], (found[-1][1] - models * sizes[-1]) / 2**20
        print(f"{name:<30}" + "".join(f"{1e6 * s:8.0f}" for s, _ in found) + f"{ratio:8.2f}{extra:12.0f}", flush=True)
        rows.append((f"{name}: worker-step at {sizes[-1]} / at 16", ratio, 1.2))
        rows.append((f"{name}: GB beyond the models at {sizes[-1]}", extra / 1024, 2.0))
    report("virtual workers in one process", rows, args.json)


if __name__ == "__main__":
    main()
