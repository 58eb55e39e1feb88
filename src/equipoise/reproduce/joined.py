"""All-reduce at every step with the passes of all workers computed as one: the same iterates, a fraction of the time.

The mean over the workers' gradients is the gradient of their batches together, as long as these have one size. So one
model takes the steps. Orders, sketches and messages are those of the library. Only the signs that an order gives while
an epoch runs are computed here, for all workers at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..batch.fixed import Fixed
from ..comm.base import Comm, barrier
from ..data.base import Arrays
from ..data.source import Source
from ..launch.start import spawn
from ..loop.job import Job, Length
from ..loop.position import Position
from ..loop.worker import Worker
from ..order import Order
from ..order.balanced_order import BalancedOrder
from ..order.epoch_builder import EpochBuilder
from ..order.sign_terms import PAIR, Floats, sign_sequentially
from ..signal.base import GradientView
from ..signal.layer_sketch import SketchedRows
from ..signal.rows import Rows

AfterEpoch = Callable[[nn.Module, bool], None]  # the model, and whether the order has learned from the epoch


@dataclass(frozen=True)
class Joined:
    """What the workers train; `batch`: examples of one worker in a step."""

    build: Callable[[], nn.Module]
    loss: Any
    data: Arrays
    optimizer: Callable[[Any], torch.optim.Optimizer]
    workers: int
    batch: int = 1

    def train(self, order: Order, epochs: int, seed: int, after_epoch: AfterEpoch) -> None:
        """Examples beyond a whole number of steps of all workers wait for the next epoch."""
        of_rank: dict[int, Worker] = {}

        def loop(comm: Comm) -> None:
            job = Job(
                model=self.build,
                loss=self.loss,
                train=Source(self.data),
                length=Length(epochs=10**6),
                optimizer=self.optimizer,
                order=order,
                batch=Fixed(self.batch),
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
                    learning = _learning(worker.order)
                    steps = self._epoch([of_rank[rank] for rank in range(comm.size)])
                    # What the all-reduces of these steps would have sent: sketches must stay few in comparison.
                    messages, sent = worker.sync.cost(worker.flat.size, comm.rank, comm.size, due=True)
                    comm.ledger.record(steps * messages, steps * sent)
                    after_epoch(worker.model, learning)
                barrier(comm)

        spawn(loop, self.workers, virtual=True)

    def _epoch(self, workers: list[Worker]) -> int:
        """One epoch of the first worker's model on the batches of all workers; its steps."""
        first, places = workers[0], [worker.position for worker in workers if isinstance(worker.position, Position)]
        observer = _observer([worker.order for worker in workers], self.batch) if _learning(first.order) else None
        ends = range(self.batch, min(len(place.sequence) for place in places) + 1, self.batch)
        for end in ends:
            now = slice(end - self.batch, end)
            x, y = self.data.batch(np.concatenate([place.sequence[now] for place in places]))
            first.optimizer.zero_grad()
            with first.order.watcher.watching(first.model, len(x)) if observer else contextlib.nullcontext():
                self.loss(first.model(x), y).backward()
            if observer:
                positions = [place.positions[now] for place in places if place.positions is not None]
                observer(positions, first.order.watcher.view())
            first.optimizer.step()
        return len(ends)


def _learning(order: Order) -> bool:
    return isinstance(order, BalancedOrder) and order.learning


Observer = Callable[[list[npt.NDArray[np.int64]], GradientView], None]


def _observer(orders: list[Order], batch: int) -> Observer:
    """What the orders of all workers do with the view of a joint pass."""
    balanced = [order for order in orders if isinstance(order, BalancedOrder)]
    if isinstance(balanced[0].builder, EpochBuilder):
        assert batch == 1, "pairs within a batch are not computed here"
        return PairSigns(balanced).observe

    def observe(positions: list[npt.NDArray[np.int64]], view: GradientView) -> None:
        for order, own, part in zip(balanced, positions, _parts(view, len(balanced)), strict=True):
            order.observe(own, part)

    return observe


def _parts(view: GradientView, workers: int) -> list[Rows]:
    """What each worker would have seen of the pass."""
    assert isinstance(view, Rows)
    each = view.items // workers
    parts = [slice(start, start + each) for start in range(0, view.items, each)]
    if isinstance(view, SketchedRows):  # the gradient of a mean over more examples: undone
        return [SketchedRows(view.sketch, view.a[part], view.d[part] * workers) for part in parts]
    return [Rows(view.rows[part], view.sizes[part]) for part in parts]


class PairSigns:
    """One epoch of `CDGraB` or `IDGraB` that sign while it runs, with one example per worker and step.

    v_w = g_w(2k-1) - g_w(2k), s_w = -sign <S, v_w>, S <- S + s_w v_w: S and the sequence w = 1..W are those of all
    workers together where they coordinate, else every worker has its own S.
    """

    def __init__(self, orders: list[BalancedOrder]):
        self.builders = [order.builder for order in orders]
        self.sign = self._sign_together if orders[0].coordinated else self._sign_apart
        self.open: tuple[list[int], torch.Tensor] | None = None  # units and gradients of the first step of a pair
        self.total: torch.Tensor | None = None  # S, or a row for the S of every worker

    @torch.no_grad()
    def observe(self, positions: list[npt.NDArray[np.int64]], view: GradientView) -> None:
        units = [int(b.units.of[own[0]]) for b, own in zip(self.builders, positions, strict=True)]
        gradients = view.vectors(torch.eye(view.items, dtype=view.zeros().dtype))
        if self.open is None:
            self.open = units, gradients
            return
        (before, first), self.open = self.open, None
        plus = np.outer(self.sign(first.sub_(gradients)), PAIR) > 0
        for builder, pair, sides in zip(self.builders, zip(before, units, strict=True), plus, strict=True):
            builder.units.place(np.array([pair]), sides[None], None)

    def _sign_together(self, v: torch.Tensor) -> Floats:
        self.total = torch.zeros_like(v[0]) if self.total is None else self.total
        products, gram = (v @ self.total).double().numpy(), (v @ v.T).double().numpy()
        signs = sign_sequentially(products, gram, self._choose).signs
        self.total.addmv_(v.T, torch.as_tensor(signs, dtype=v.dtype))
        return signs

    def _sign_apart(self, v: torch.Tensor) -> Floats:
        self.total = torch.zeros_like(v) if self.total is None else self.total
        known = zip(torch.linalg.vecdot(self.total, v).tolist(), v.square().sum(1).tolist(), strict=True)
        signs = np.array([float(self._choose(*of_worker)) for of_worker in known])
        self.total.addcmul_(v, torch.as_tensor(signs, dtype=v.dtype)[:, None])
        return signs

    def _choose(self, product: float, square: float) -> int:
        builder = self.builders[0]
        assert isinstance(builder, EpochBuilder)
        return builder.choose_sign(product, square)
