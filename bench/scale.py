"""Many virtual workers in one process: time and memory per worker and step for 16 to 1,024 workers.

A small model (an MLP of about 2,400 parameters on 16 features), batch 8, momentum SGD. The cost is linear if the time
of one worker's step does not depend on the number of workers. The ratio is the median over turns in which the fewest
and the most workers are measured one after the other. For comparison, the same steps of as many models in a plain
loop, eight of each in turn, show the cost of larger memory alone.
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


def plain(models: int, block: int, repetitions: int) -> tuple[float, int]:
    """As `measure`, of models in a loop without workers."""
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(models * 128, 16, generator=generator), torch.randint(20, (models * 128,))
    nets = [small() for _ in range(models)]
    optimizers, loss = [sgd(net.parameters()) for net in nets], nn.CrossEntropyLoss()
    seconds = []
    for _ in range(repetitions + 1):
        started = time.perf_counter()
        for net, optimizer in zip(nets, optimizers, strict=True):
            for _ in range(block):
                some = torch.randint(len(inputs), (8,), generator=generator)
                optimizer.zero_grad()
                value = loss(net(inputs[some]), labels[some])
                value.backward()
                optimizer.step()
                value.item()
        seconds.append((time.perf_counter() - started) / block / models)
    return statistics.median(seconds[1:]), 0


def main() -> None:
    args = arguments(__doc__, block=8, repetitions=2, turns=3, most=1024)
    torch.set_num_threads(1)
    models = 3 * 4 * sum(p.numel() for p in small().parameters())  # model, gradient, momentum of a worker
    sizes = [size for size in SIZES if size <= args.most]
    rows: list[tuple[str, float, float | None]] = []
    print(
        f"{'microseconds per worker-step':<30}"
        + "".join(f"{size:>8}" for size in sizes)
        + "   to 16   MB beyond models"
    )
    for name in ("models in a plain loop", *METHODS):

        def timed(size: int, name: str = name) -> tuple[float, int]:
            repetitions = args.repetitions * max(1, 64 // size)
            if name not in METHODS:
                return plain(size, args.block, repetitions)
            sync, period = METHODS[name]
            return measure(size, sync(), period, args.block, repetitions)

        ends = [(timed(sizes[0]), timed(sizes[-1])) for _ in range(args.turns)]
        totals = [
            statistics.median(least[0] for least, _ in ends),
            *(timed(size)[0] for size in sizes[1:-1]),
            statistics.median(most[0] for _, most in ends),
        ]
        ratio = statistics.median(most[0] / least[0] for least, most in ends)
        extra = (max(most[1] for _, most in ends) - models * sizes[-1]) / 2**20
        memory = f"{extra:12.0f}" if name in METHODS else ""
        print(f"{name:<30}" + "".join(f"{1e6 * s:8.0f}" for s in totals) + f"{ratio:8.2f}{memory}", flush=True)
        rows.append((f"{name}: worker-step at {sizes[-1]} / at 16", ratio, 1.2 if name in METHODS else None))
        if name in METHODS:
            rows.append((f"{name}: GB beyond the models at {sizes[-1]}", extra / 1024, 2.0))
    report("virtual workers in one process", rows, args.json)


if __name__ == "__main__":
    main()
