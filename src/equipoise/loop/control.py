"""Control points: where all workers agree on whether to stop."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch

from .until import standing

if TYPE_CHECKING:
    from .worker import Worker

_PATIENCE = 0.5  # seconds between control points at the most, where steps are shorter than that


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
        return (length.budget is not None and self.used >= length.budget) or self.worker.progress.reached(length)

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
        clock, job, pace = self.worker.clock, self.job, self.worker.progress
        if not pace.meeting:
            return 0
        logged = clock.step % job.log_every == 0 or not pace.lockstep
        simulated_budget = job.length.budget is not None and job.described
        if not (logged or clock.step >= self.next or simulated_budget):
            return 0
        mean = sum(self.losses) / len(self.losses) if self.losses else math.nan
        table = self._meet(mean)
        if logged:
            self.worker.observer.stepped(mean, table[:, 3].tolist())
            self.losses = []
        if not self.comm.virtual:
            per_step = max(float(table[0, 4]), 1e-9)
            self.next = clock.step + max(1, min(job.log_every, int(_PATIENCE / per_step)))
        else:
            self.next = clock.step + job.log_every
        return int(table[:, 0].max())

    def _meet(self, loss: float) -> torch.Tensor:
        """A row per worker: signal, seconds, simulated seconds, loss, seconds per step, steps, samples, seconds not yet attributed."""
        clock, job = self.worker.clock, self.job
        signal = job.stop.code if job.stop.is_set() else 0
        per_step = (time.monotonic() - self.started) / max(1, clock.step)
        ledger = self.comm.ledger
        mine = [signal, clock.seconds, self.comm.now, loss, per_step, clock.step, clock.samples, ledger.unattributed]
        with self.comm.uncounted():
            table = self.comm.gather(torch.tensor(mine, dtype=torch.float64))
        ledger.attribute_wait(float(table[:, 7].min()))
        self.worker.progress.met(table[:, 5], table[:, 6])
        self.used = float(table[:, 2].max() if job.described else table[:, 1].max())
        return table
