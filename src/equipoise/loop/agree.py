"""What all workers must agree on: where they start, and when they stop."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..comm.base import Comm
from ..errors import WorkerError
from ..vector import Flat, digest

if TYPE_CHECKING:
    from .worker import Worker

_PATIENCE = 0.5  # seconds between control points at the most, where steps are shorter than that


def make_equal(comm: Comm, model: nn.Module, flat: Flat) -> None:
    """Give every worker worker 0's parameters and buffers, frozen ones too, and verify that they arrived."""
    if comm.size == 1:
        return
    shapes = comm.gather_objects([(name, tuple(t.shape), str(t.dtype)) for name, t in model.state_dict().items()])
    for rank, other in enumerate(shapes):
        if other != shapes[0]:
            differing = next((a for a, b in zip(other, shapes[0], strict=False) if a != b), "another number of tensors")
            raise WorkerError(f"worker {rank} built another model than worker 0: {differing}", rank, 0)
    with comm.uncounted():
        comm.broadcast(flat.gather())
        flat.scatter()
        frozen = [p for p in model.parameters() if not p.requires_grad]
        for tensor in [*frozen, *model.buffers()]:
            comm.broadcast(tensor.data)
    sums = comm.gather_objects(digest(flat.gather(), *frozen, *model.buffers()))
    assert len(set(sums)) == 1, "the initial parameters differ after a broadcast"


class Control:
    """Decides together, every few steps, whether to stop: a signal, a budget. Progress is reported at the same points."""

    def __init__(self, worker: Worker):
        self.worker, self.comm, self.job = worker, worker.comm, worker.job
        self.started = time.monotonic()
        self.next = 1
        self.losses: list[float] = []
        self.spent = False

    def over(self) -> bool:
        """Has the run reached its length? Every worker computes the same answer."""
        clock, length = self.worker.clock, self.job.length
        position = self.worker.position
        if self.spent:
            return True
        if length.steps is not None and clock.step >= length.steps:
            return True
        if length.epochs is not None:
            whole, part = divmod(length.epochs, 1.0)
            done = clock.epoch + (position.steps_left == 0)
            if done > whole or (done >= whole and part == 0):
                return True
            if clock.epoch == whole and position.part_done >= part - 1e-9:
                return True
        if length.samples is not None:
            return position.consumed >= length.samples
        return False

    def after(self, loss: float) -> int:
        """After a step: 0, or the exit code of the signal on which all workers agreed to stop."""
        if not math.isnan(loss):
            self.losses.append(loss)
        clock, job = self.worker.clock, self.job
        logged = clock.step % job.log_every == 0
        simulated_budget = job.length.budget is not None and job.described
        if not (logged or clock.step >= self.next or simulated_budget):
            return 0
        elapsed = time.monotonic() - self.started
        mean = sum(self.losses) / len(self.losses) if self.losses else math.nan
        mine = torch.tensor(
            [job.stop.code if job.stop.is_set() else 0, clock.seconds, self.comm.now, mean, elapsed / max(1, clock.step)], dtype=torch.float64
        )
        with self.comm.uncounted():
            table = self.comm.gather(mine)
        if logged:
            self.worker.observer.stepped(mean, table)
            self.losses = []
        if not self.comm.virtual:
            pace = max(float(table[0, 4]), 1e-9)
            self.next = clock.step + max(1, min(job.log_every, int(_PATIENCE / pace)))
        else:
            self.next = clock.step + job.log_every
        if job.length.budget is not None:
            used = table[:, 2].max() if job.described else table[:, 1].max()
            self.spent = bool(used >= job.length.budget)
        return int(table[:, 0].max())
