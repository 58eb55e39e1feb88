"""What all workers must agree on: where they start, and when they stop."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..comm.base import Comm
from ..core.errors import WorkerError
from ..core.vector import Flat, digest
from .until import standing

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
    """Decides together, every few steps, whether to stop: a signal, a budget, a target. Progress is reported at the same points."""

    def __init__(self, worker: Worker):
        self.worker, self.comm, self.job = worker, worker.comm, worker.job
        self.started = time.monotonic()
        self.next = 1
        self.losses: list[float] = []
        self.used = 0.0  # of the budget, as far as all workers know
        self.reached: dict[str, Any] | None = None  # where the target was met; a checkpoint keeps it

    def begin(self) -> None:
        """Agree on where a checkpoint has left off."""
        if self.job.resume is not None:
            self._meet(math.nan)
        if self.reached is not None and self.job.until != (self.reached["metric"], self.reached["target"]):
            self.reached = None  # a target of an earlier part of this run

    def over(self) -> bool:
        """Has the run reached its length? Every worker computes the same answer."""
        length = self.job.length
        if self.reached is not None:
            return True
        return (length.budget is not None and self.used >= length.budget) or self.worker.pace.reached(length)

    def judge(self, models: dict[str, dict[str, float]]) -> bool:
        """After an evaluation, which gives all workers the same numbers: is the target met?"""
        until = self.job.until
        if self.reached is None and until is not None and until.met(models):
            self.reached = standing(self.worker, until)
        return self.reached is not None

    def after(self, loss: float) -> int:
        """After a step: 0, or the exit code of the signal on which all workers agreed to stop."""
        if not math.isnan(loss):
            self.losses.append(loss)
        clock, job, pace = self.worker.clock, self.job, self.worker.pace
        if not pace.meeting:
            return 0
        logged = clock.step % job.log_every == 0 or not pace.lockstep
        simulated_budget = job.length.budget is not None and job.described
        if not (logged or clock.step >= self.next or simulated_budget):
            return 0
        mean = sum(self.losses) / len(self.losses) if self.losses else math.nan
        table = self._meet(mean)
        if logged:
            self.worker.observer.stepped(mean, table)
            self.losses = []
        if not self.comm.virtual:
            per_step = max(float(table[0, 4]), 1e-9)
            self.next = clock.step + max(1, min(job.log_every, int(_PATIENCE / per_step)))
        else:
            self.next = clock.step + job.log_every
        return int(table[:, 0].max())

    def _meet(self, loss: float) -> torch.Tensor:
        """A row per worker: signal, seconds, simulated seconds, loss, seconds per step, steps, samples, unsorted seconds."""
        clock, job = self.worker.clock, self.job
        signal = job.stop.code if job.stop.is_set() else 0
        per_step = (time.monotonic() - self.started) / max(1, clock.step)
        ledger = self.comm.ledger
        mine = [signal, clock.seconds, self.comm.now, loss, per_step, clock.step, clock.samples, ledger.unsorted]
        with self.comm.uncounted():
            table = self.comm.gather(torch.tensor(mine, dtype=torch.float64))
        ledger.sort_out(float(table[:, 7].min()))
        self.worker.pace.met(table[:, 5], table[:, 6])
        self.used = float(table[:, 2].max() if job.described else table[:, 1].max())
        return table
