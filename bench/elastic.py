"""What it costs that workers may come and go: snapshots in memory, and a change of membership.

    python bench/elastic.py

The cost of a snapshot is a ratio of processor times within one run: a copy of model, optimizer and outer state against
a training step on one thread. A run takes one every 16 steps where every step is a round, and one per round elsewhere.
The seconds of a change are those of local processes, from the moment in which a survivor notices to the next step.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import equipoise as eq
from equipoise.comm.membership import Elasticity
from equipoise.comm.process import ProcessComm
from equipoise.comm.virtual_membership import VirtualMembers
from equipoise.config.defaults import chosen_batch
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.snapshot import Snapshots
from equipoise.loop.train import run_job
from equipoise.loop.worker import Worker

REPEATS = 20
Optimizer = Callable[[Any], torch.optim.Optimizer]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def mlp(width: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def make_job(model: Callable[[], nn.Module], shape: tuple[int, ...], optimizer: Optimizer, **options: Any) -> Job:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(2000, *shape, generator=generator), torch.randint(0, 10, (2000,), generator=generator)
    chosen: dict[str, Any] = {"length": Length(steps=10**6), "elastic": Elasticity(1, 4), **options}
    return Job(model, nn.CrossEntropyLoss(), Source(data), optimizer=optimizer, batch=chosen_batch(32), **chosen)


def snapshot_cost(job: Job) -> tuple[float, float]:
    """Processor seconds of a step and of a snapshot."""

    def loop(comm: Any) -> tuple[float, float]:
        worker, snapshots = Worker(job, comm), Snapshots()

        def step(number: int) -> None:
            if worker.position.steps_left == 0:
                worker.clock.epoch += 1
                worker.position.begin(worker.clock.epoch)
            worker.step()

        def snapshot(number: int) -> None:
            snapshots.take((0, number), worker.parts())

        for number in range(4):  # the first ones allocate
            step(number)
            snapshot(number)
        return timed(step), timed(snapshot)

    return VirtualMembers(2, Elasticity(1, 2)).run(loop)[0]  # type: ignore[no-any-return]


def timed(function: Callable[[int], None]) -> float:
    began = time.thread_time()
    for number in range(REPEATS):
        function(number)
    return (time.thread_time() - began) / REPEATS


def change_seconds(sync: Any) -> tuple[list[float], list[int]]:
    """A worker is killed at step 12 and started again; seconds of both changes, and the bytes given to it."""
    original = ProcessComm.computed

    def computed(comm: ProcessComm, examples: float) -> float:
        if comm.worker == 1 and comm.step == 12 and comm.membership.roster.generation == 0:  # type: ignore[union-attr]
            os.kill(os.getpid(), signal.SIGKILL)
        return original(comm, examples)

    ProcessComm.computed = computed  # type: ignore[method-assign]
    options = {"sync": sync, "period": eq.period.Every(4), "elastic": Elasticity(1, 4, respawn=1)}
    job = make_job(mlp(1000), (64,), sgd, **options, **{"length": Length(epochs=12.0), "evaluate_every": 1000.0})
    try:
        result = run_job(job, 4, virtual=False, cluster=None, deterministic=False, timeout=60.0).result
    finally:
        ProcessComm.computed = original  # type: ignore[method-assign]
    rows = result["membership"]
    return [row["transition_seconds"] for row in rows], [row["given_bytes"] for row in rows]


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'model, optimizer':24}{'parameters':>12}{'step':>10}{'snapshot':>10}{'ratio':>8}{'every 16':>10}")
    for name, model, shape, optimizer in (
        ("mlp 64, sgd", mlp(64), (64,), sgd),
        ("mlp 1000, sgd", mlp(1000), (64,), sgd),
        ("mlp 1000, adam", mlp(1000), (64,), adam),
        ("mlp 3000, sgd", mlp(3000), (64,), sgd),
        ("convolutions, sgd", convolutions, (1, 28, 28), sgd),
        ("convolutions, adam", convolutions, (1, 28, 28), adam),
    ):
        step, snapshot = snapshot_cost(make_job(model, shape, optimizer))
        size = sum(p.numel() for p in model().parameters())
        ratio = snapshot / step
        row = f"{name:24}{size:>12,}{1e3 * step:>7.2f} ms{1e3 * snapshot:>7.2f} ms"
        print(f"{row}{ratio:>8.1%}{ratio / 16:>10.2%}")
    for sync in (eq.sync.PeriodicAverage(), eq.sync.DPSGD()):
        seconds, given = change_seconds(sync)
        words = ", ".join(f"{value:.2f} s" for value in seconds)
        print(f"{type(sync).__name__}, 4 processes, a million parameters: {words}; {given[-1]:,} bytes given")


if __name__ == "__main__":
    main()
