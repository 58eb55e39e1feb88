"""Training under an order with the passes of all workers computed as one: the same iterates, a third of the time.

The mean over the workers' gradients is the gradient of their batches together, as long as these have one size. So one
model takes the steps; the orders of all workers, their sketches and their messages are those of the library.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import numpy as np
import order_curves
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm, barrier
from equipoise.data.base import LoadedData
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker
from equipoise.order import Order
from equipoise.signal.base import GradientView
from equipoise.signal.layer_sketch import SketchedRows
from equipoise.signal.rows import Rows


class Curve(NamedTuple):
    losses: list[float]  # after every epoch
    learned: int  # epochs that the order was learned from


def curve(
    task: order_curves.Task, data: LoadedData, order: Order, workers: int, epochs: int, lr: float, seed: int
) -> Curve:
    """The training loss after every epoch. `order` is a free one, or keeps sketches."""
    of_rank: dict[int, Worker] = {}
    losses: list[float] = []
    learned: list[bool] = []

    def build() -> nn.Module:
        torch.manual_seed(seed)
        return task.model.build(data)

    def loop(comm: Comm) -> None:
        job = Job(
            model=build,
            loss=task.loss,
            train=Source(data.train),
            length=Length(epochs=10**6),
            optimizer=lambda p: torch.optim.SGD(p, lr=lr, momentum=0.9, weight_decay=task.decay),
            order=order,
            batch=eq.batch.Fixed(task.together // workers),
            seed=seed,
        )
        of_rank[comm.rank] = worker = Worker(job, comm)
        worker.model.train()
        for epoch in range(epochs):
            if epoch:
                worker.clock.epoch += 1
                worker.position.begin(worker.clock.epoch)
            barrier(comm)
            if comm.rank == 0:
                learned.append(_learning(worker.order))
                steps = _epoch(task, data, [of_rank[rank] for rank in range(workers)])
                # What the all-reduces of these steps would have sent: sketches must stay few in comparison.
                d = sum(p.numel() for p in worker.model.parameters())
                comm.ledger.record(0, steps * 8 * d * (workers - 1) // workers)
                losses.append(order_curves.measure(task, worker.model, data.train, task.measured)[0])
            barrier(comm)

    eq.spawn(loop, workers, virtual=True)
    return Curve(losses, sum(learned))


def _learning(order: Order) -> bool:
    return bool(order.watches and order.learning)


def _epoch(task: order_curves.Task, data: LoadedData, workers: list[Worker]) -> int:
    """One epoch of the first worker's model on the batches of all workers; its steps."""
    first, each = workers[0], task.together // len(workers)
    learning = _learning(first.order)
    ends = range(each, min(len(worker.position.sequence) for worker in workers) + 1, each)
    for end in ends:
        now = slice(end - each, end)
        x, y = data.train.batch(np.concatenate([worker.position.sequence[now] for worker in workers]))
        first.optimizer.zero_grad()
        with first.order.watcher.watching(first.model, len(x)) if learning else contextlib.nullcontext():
            task.loss(first.model(x), y).backward()
        if learning:
            for worker, view in zip(workers, _parts(first.order.watcher.view(), len(workers)), strict=True):
                worker.order.observe(worker.position.positions[now], view)
        first.optimizer.step()
    return len(ends)


def _parts(view: GradientView, workers: int) -> list[Rows]:
    """What each worker would have seen of the pass."""
    assert isinstance(view, Rows)
    each = view.items // workers
    parts = [slice(start, start + each) for start in range(0, view.items, each)]
    if isinstance(view, SketchedRows):  # the gradient of a mean over more examples: undone
        return [SketchedRows(view.sketch, view.a[part], view.d[part] * workers) for part in parts]
    return [Rows(view.rows[part], view.sizes[part]) for part in parts]
