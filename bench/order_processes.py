"""CD-GraB on real processes: step of a coordinated order / step of random reshuffling (D-RR), and its bytes compared
with a gather of gradients.

1M-parameter MLP, all-reduce, batches of 32 per worker, momentum SGD. All variants run in the same processes on the
same group, in turn; whole epochs of 32 steps, eight for one measurement. One thread per process. `--orders` selects
("default; every epoch: exact").
"""

from __future__ import annotations

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
from equipoise.order.balanced_order import BalancedOrder

ORDERS: dict[str, Callable[[], eq.order.Order]] = {
    "D-RR": eq.order.Reshuffle,
    "default": eq.order.CDGraB,
    "one epoch in five: projection": lambda: eq.order.CDGraB(signal="projection", every=5),
    "every epoch: exact": lambda: eq.order.CDGraB(signal="exact"),
    "every epoch: exact, stale": lambda: eq.order.CDGraB(signal="exact", coordinate="stale"),
    "every epoch: projection": lambda: eq.order.CDGraB(signal="projection", every=1),
    "every epoch: last layer": lambda: eq.order.CDGraB(signal="last-layer", every=1),
    "every epoch: ID-GraB exact": lambda: eq.order.IDGraB(signal="exact"),
    "every epoch: relay, projection": lambda: eq.order.GossipGraB(signal="projection"),
    "every epoch: one-peer, projection": lambda: eq.order.GossipGraB(signal="projection", pass_on="one-peer"),
}
GOALS = {
    "default": 1.05,
    "one epoch in five: projection": 1.05,
    "every epoch: exact": 1.8,
    "every epoch: projection": 1.2,
    "every epoch: last layer": 1.2,
}


def compare(
    comm: Comm, batch: int, repetitions: int, orders: list[str]
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds and bytes (of all workers) per step of each order."""
    data = Source(images())
    workers = {}
    for name in orders:
        job = Job(
            model=mlp,
            loss=nn.functional.cross_entropy,
            train=data,
            length=Length(epochs=1000),
            optimizer=sgd,
            order=ORDERS[name](),
            batch=eq.batch.Fixed(batch),
        )
        workers[name] = Worker(job, comm)
        workers[name].model.train()

    def steps(worker: Worker, count: int) -> None:
        for _ in range(count):
            if worker.position.steps_left == 0:
                worker.clock.epoch += 1
                worker.position.begin(worker.clock.epoch)
            worker.step()

    epoch = workers["D-RR"].position.steps_left
    for worker in workers.values():
        # An order that finds out how often it has to learn has done so after 16 epochs.
        finds_out = isinstance(worker.order, BalancedOrder) and not worker.order.chosen.every
        for _ in range(16 if finds_out else 1):
            steps(worker, epoch)
    cycle = 8  # the longest from one learned epoch to the next
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    sent: dict[str, float] = {}
    for turn in range(repetitions + 1):
        spent, told = dict.fromkeys(workers, 0.0), dict.fromkeys(workers, 0)
        for _ in range(cycle):
            for name, worker in workers.items():
                before = comm.ledger.bytes
                barrier(comm)
                started = time.perf_counter()
                steps(worker, epoch)
                barrier(comm)
                spent[name] += time.perf_counter() - started
                told[name] += comm.ledger.bytes - before
        for name in workers:
            if turn:
                seconds[name].append(spent[name] / (cycle * epoch))
            sent[name] = told[name] / (cycle * epoch)
    return seconds, {name: sum(comm.gather_objects(value)) for name, value in sent.items()}


def main() -> None:
    args = arguments(__doc__ or "", workers=4, batch=32, repetitions=7, orders="")
    torch.set_num_threads(1)
    orders = [name for name in ORDERS if name in ("D-RR", *(args.orders or name).split("; "))]
    results = eq.spawn(lambda comm: compare(comm, args.batch, args.repetitions, orders), args.workers)
    seconds, sent = results[0]
    d = sum(p.numel() for p in mlp().parameters())
    gathered = args.workers * args.batch * (args.workers - 1) * d * 4
    plain = seconds["D-RR"]
    print(f"D-RR step {1e3 * sorted(plain)[len(plain) // 2]:.1f} ms on {args.workers} processes")
    rows: list[tuple[str, float, float | None]] = []
    for name in orders[1:]:
        rows.append((f"{name} step / D-RR step", median_ratio(seconds[name], plain), GOALS.get(name)))
    for name in orders[1:]:
        rows.append((f"{name}: bytes / gather of all gradients", (sent[name] - sent["D-RR"]) / gathered, None))
        rows.append((f"{name}: extra bytes / all-reduce", (sent[name] - sent["D-RR"]) / sent["D-RR"], None))
    report("Coordinated orders on processes", rows, args.json)


if __name__ == "__main__":
    main()
