"""What a pull costs beyond the all-reduce in it: 4 gloo processes on this machine, 1M-parameter MLP, batch 32.

    python pull_cost.py [--period 32]

First the round alone, against an all-reduce of the same model; then whole training, a period of local steps and a round,
against the plain average of Local SGD. All run in the same processes on the same group, a block each in turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from common import arguments, images, median_ratio, mlp, report, sgd
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm, barrier
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker

SYNCS = {
    "plain average": eq.sync.PeriodicAverage(weights="uniform"),
    "MGRAWA": eq.sync.MGRAWA(),
    "LGRAWA": eq.sync.LGRAWA(),
    "LGRAWA, prox": eq.sync.LGRAWA(prox=0.01),
    "LGRAWA, fresh batch": eq.sync.LGRAWA(source="fresh"),
}


def compare(comm: Comm, period: int, repetitions: int) -> dict[str, list[float]]:
    data = Source(images())
    workers = {
        name: Worker(
            Job(
                model=mlp,
                loss=nn.CrossEntropyLoss(),
                train=data,
                length=Length(epochs=1000),
                optimizer=sgd,
                sync=sync,
                period=eq.period.Every(period),
            ),
            comm,
        )
        for name, sync in SYNCS.items()
    }

    def training(worker: Worker) -> Callable[[], None]:
        def steps() -> None:
            for _ in range(period):
                if worker.position.steps_left == 0:
                    worker.clock.epoch += 1
                    worker.position.begin(worker.clock.epoch)
                worker.step()

        return steps

    vector = workers["plain average"].flat.x.clone()
    turns: dict[str, Callable[[], object]] = {"all-reduce": lambda: [comm.mean(vector) for _ in range(8)]}
    for name in ("MGRAWA", "LGRAWA"):
        sync, x = workers[name].sync, workers[name].flat.x
        turns[f"{name} round"] = lambda sync=sync, x=x: [sync.after_step(x) for _ in range(8)]
    turns |= {name: training(worker) for name, worker in workers.items()}
    for worker in workers.values():
        worker.model.train()
        worker.step()  # makes centres, norms and buffers
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for turn in range(repetitions + 1):
        for name, function in turns.items():
            barrier(comm)
            start = time.perf_counter()
            function()
            barrier(comm)
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    args = arguments(__doc__, workers=4, period=32, repetitions=15)
    torch.set_num_threads(1)
    seconds = eq.spawn(lambda comm: compare(comm, args.period, args.repetitions), args.workers)[0]
    median = {name: 1e3 * statistics.median(values) for name, values in seconds.items()}
    for name in ("all-reduce", "MGRAWA round", "LGRAWA round"):
        print(f"{name}: {median[name] / 8:.2f} ms")
    for name in SYNCS:
        print(f"{name}: {median[name] / args.period:.2f} ms a step at period {args.period}")
    rows: list[tuple[str, float, float | None]] = [
        (f"{name} round / all-reduce of the model", median_ratio(seconds[f"{name} round"], seconds["all-reduce"]), None)
        for name in ("MGRAWA", "LGRAWA")
    ]
    for name in SYNCS:
        if name == "plain average":
            continue
        goal = 1.02 if name in ("MGRAWA", "LGRAWA") else None
        ratio = median_ratio(seconds[name], seconds["plain average"])
        rows.append((f"{name} / plain average, period {args.period}", ratio, goal))
    report(f"Cost of a pull, {args.workers} gloo processes", rows, args.json)


if __name__ == "__main__":
    main()
