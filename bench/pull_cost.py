"""What a pull costs beyond the all-reduce in it: 4 processes on this machine, 1M-parameter MLP, batch 32.

    python pull_cost.py [--period 32]
    sudo python namespaces.py pull_cost.py --rates 1gbit,100mbit -- --repetitions 5 --period 4    # on a limited network

The round alone, with the gradient norms that it needs and without them, against the bare collective (a sum of as many bytes) and
against the round of Local SGD, which writes a mean into the parameters; then whole training, a period of local steps and a
round. Both through the memory that processes of one machine share and through sockets, as between machines (but faster:
nothing leaves this one). All run in the same processes on the same group, a block each in turn.
"""

from __future__ import annotations

import os
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
from equipoise.sync.gradient_norms import STEPS

ROUNDS = 8  # in one measurement
ROUND_OF = ("plain average", "MGRAWA", "LGRAWA")
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

    vector = workers["plain average"].flat.x.clone().zero_()
    turns: dict[str, Callable[[], object]] = {"all-reduce": lambda: [comm.sum(vector) for _ in range(ROUNDS)]}
    for name in ROUND_OF:
        sync, x = workers[name].sync, workers[name].flat.x
        turns[f"{name} round"] = lambda sync=sync, x=x: [sync.after_step(x) for _ in range(ROUNDS)]
    norms = workers["LGRAWA"].sync.norms  # type: ignore[attr-defined]
    turns["norms"] = lambda: [norms.observe_step(0) for _ in range(ROUNDS * STEPS["train"])]
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


def rows_of(seconds: dict[str, list[float]], period: int, where: str) -> list[tuple[str, float, float | None]]:
    """Ratios of neighbouring measurements."""
    median = {name: 1e3 * statistics.median(values) for name, values in seconds.items()}
    for name in ("all-reduce", *(f"{name} round" for name in ROUND_OF), "norms"):
        print(f"{where}, {name}: {median[name] / ROUNDS:.2f} ms")
    for name in SYNCS:
        print(f"{where}, {name}: {median[name] / period:.2f} ms a step at period {period}")
    rows: list[tuple[str, float, float | None]] = []
    plain, bare = seconds["plain average round"], seconds["all-reduce"]
    rows.append((f"{where}: round of plain average / all-reduce", median_ratio(plain, bare), None))
    for name in ("MGRAWA", "LGRAWA"):
        alone = seconds[f"{name} round"]
        whole = [a + b for a, b in zip(alone, seconds["norms"], strict=True)]
        rows.append((f"{where}: round of {name} / all-reduce", median_ratio(alone, bare), None))
        rows.append((f"{where}: round of {name} / round of plain average", median_ratio(alone, plain), 1.02))
        rows.append((f"{where}: the same with its norms", median_ratio(whole, plain), 1.02))
        more = [(a - b) / ROUNDS for a, b in zip(whole, plain, strict=True)]
        rows.append(
            (f"{where}: what it adds / {period} steps and a round", median_ratio(more, seconds["plain average"]), 0.02)
        )
    for name in SYNCS:
        if name != "plain average":
            goal = 1.02 if name in ("MGRAWA", "LGRAWA") else None
            ratio = median_ratio(seconds[name], seconds["plain average"])
            rows.append((f"{where}: training with {name} / plain average", ratio, goal))
    return rows


def main() -> None:
    args = arguments(__doc__, workers=4, period=32, repetitions=15)
    torch.set_num_threads(1)
    rows: list[tuple[str, float, float | None]] = []
    ways = (("network", "0"),) if "RANK" in os.environ else (("shared memory", "1"), ("sockets", "0"))
    for where, shared in ways:
        os.environ["EQUIPOISE_SHARED_MEMORY"] = shared
        seconds = eq.spawn(lambda comm: compare(comm, args.period, args.repetitions), args.workers)[0]
        if os.environ.get("RANK", "0") == "0":
            rows += rows_of(seconds, args.period, where)
    if not rows:
        return
    report(f"Cost of a pull, {args.workers} processes", rows, args.json)


if __name__ == "__main__":
    main()
