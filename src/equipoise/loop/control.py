"""Control points: where all workers agree on whether to stop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from .until import standing

if TYPE_CHECKING:
    from .worker import Worker

_PATIENCE = 0.5  # seconds between control points at the most, where steps are shorter than that


class Reports(NamedTuple):
    """What the workers say at a control point, by rank. Arrays: hundreds of virtual workers each read all of it."""

    signal: np.ndarray  # the exit code that a signal asks for, or 0
    seconds: np.ndarray
    simulated_seconds: np.ndarray
    loss: np.ndarray  # mean since the last one
    steps: np.ndarray
    samples: np.ndarray
    unattributed: np.ndarray  # seconds of communication in which waiting may hide
    unsaved: np.ndarray  # 1 if a checkpoint could not be written


class Control:
    """Decides together, every few steps, whether to stop: a signal, a budget, a target. Logs at the same points."""

    def __init__(self, worker: Worker):
        self.worker, self.comm, self.job = worker, worker.comm, worker.job
        self.next = 1
        self.losses: list[float] = []
        self.used = 0.0  # of the budget, as far as all workers know
        self.reached: dict[str, Any] | None = None  # where the target was met; a checkpoint keeps it

    def begin(self) -> None:
        """Agree on where a checkpoint has left off."""
        if self.job.resume is not None or self.worker.arrival is not None:
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
        self.worker.drift.after_step()
        clock, job, progress = self.worker.clock, self.job, self.worker.progress
        if not progress.meeting:
            return 0
        logged = clock.step % job.log_every == 0 or not progress.lockstep
        simulated_budget = job.length.budget is not None and job.described
        if not (logged or clock.step >= self.next or simulated_budget):
            return 0
        mean = sum(self.losses) / len(self.losses) if self.losses else math.nan
        reports = self._meet(mean)
        if logged:
            self.worker.observer.stepped(mean, reports.loss.tolist())
            self.losses = []
        if not self.comm.virtual:
            per_step = max(float(reports.seconds[0]) / max(1.0, float(reports.steps[0])), 1e-9)
            self.next = clock.step + max(1, min(job.log_every, int(_PATIENCE / per_step)))
        else:
            self.next = clock.step + job.log_every
        return int(reports.signal.max())

    def _meet(self, loss: float) -> Reports:
        """The reports of all workers."""
        clock, job, ledger, store = self.worker.clock, self.job, self.comm.ledger, self.worker.store
        own = {
            "signal": job.stop.code if job.stop.is_set() else 0,
            "seconds": clock.seconds,
            "simulated_seconds": self.comm.now,
            "loss": loss,
            "steps": clock.step,
            "samples": clock.samples,
            "unattributed": ledger.unattributed,
            "unsaved": store is not None and store.failed,
        }
        with self.comm.uncounted():
            row = torch.tensor([*own.values(), *self.worker.drift.row()], dtype=torch.float64)
            table = self.comm.gather(row).numpy()
        self.worker.drift.judge(table[:, len(own) :])
        reports = Reports(**dict(zip(own, table.T, strict=False)))
        if store is not None:
            store.tell(bool(reports.unsaved.any()))
        ledger.attribute_wait(float(reports.unattributed.min()))
        samples = int(reports.samples.sum()) + self.worker.departed.samples
        self.worker.progress.met(int(reports.steps.sum()), samples)
        self.used = float((reports.simulated_seconds if job.described else reports.seconds).max())
        return reports
