"""The learning rate over the part of the run that is done, counted in samples where the run is.

Batch sizes may change while a run goes on: the number of steps to its end is not known, that of samples is.
The rate is taken at the middle of the coming step: neither the first nor the last is wasted on a rate of zero.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ..batch.lr_scale import gain
from ..core.context import Forecast
from ..core.errors import UserError

if TYPE_CHECKING:
    from .job import Length
    from .worker import Worker


def factor(kind: str, warmup: float, done: float) -> float:
    """What the learning rate is multiplied by when the part `done` of the run is over."""
    if done < warmup:
        return done / warmup
    rest = (done - warmup) / (1.0 - warmup)
    if kind == "linear":
        return 1.0 - rest
    return 0.5 * (1.0 + math.cos(math.pi * rest)) if kind == "cosine" else 1.0


def forecast(length: Length, examples: int, scheduler: Any) -> Forecast | None:
    """What a run's length and its schedule tell of it; None where it does not end after a number of samples."""
    ends = [] if length.samples is None else [float(length.samples)]
    if length.epochs is not None:
        ends.append(length.epochs * examples)
    if not ends:
        return None
    if scheduler is None:
        return Forecast(min(ends), lambda done: 1.0)
    return Forecast(min(ends), scheduler.decay if isinstance(scheduler, LRSchedule) else None)


class LRSchedule:
    """Sets the learning rate of one worker's optimizer before every step."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, kind: str = "constant", warmup: float = 0.0, scaling: str = "none"
    ):
        self.optimizer, self.kind, self.warmup, self.scaling = optimizer, kind, warmup, scaling
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.worker: Worker | None = None

    def decay(self, done: float) -> float:
        """The factor of the rate at the part `done` of the run, warm-up left out."""
        return factor(self.kind, self.warmup, max(done, self.warmup))

    def follow(self, worker: Worker) -> None:
        """Take the progress from this worker from now on."""
        self.worker = worker
        if self.scaling == "adascale" and not worker.batch.watches:
            raise UserError(
                "adascale reads the noise that a batch rule measures: use --batch norm-test or another one that does, "
                "or scale the learning rate by linear or sqrt"
            )
        if self.scaling != "none" and getattr(worker.batch, "scale_lr", "none") != "none":
            raise UserError(
                f"scaling = {self.scaling} and batch.scale_lr = {worker.batch.scale_lr} would both multiply the "  # type: ignore[attr-defined]
                "learning rate: set one of them to none"
            )
        self.first = sum(worker.batch.sizes())  # the rates are those for the batch that the run begins with
        self._set(worker.clock.step)

    def step(self) -> None:
        assert self.worker is not None
        self._set(self.worker.clock.step)

    def _set(self, coming: int) -> None:
        assert self.worker is not None
        batch = self.worker.batch
        scale = factor(self.kind, self.warmup, self._done(coming))
        scale *= gain(self.scaling, sum(batch.sizes()) / self.first, self.first, batch.noise())
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * scale

    def _done(self, coming: int) -> float:
        assert self.worker is not None
        length, position = self.worker.job.length, self.worker.position
        left = position.left  # 0 at the end of an epoch, where a full batch comes next
        size = sum(self.worker.batch.sizes())
        samples = position.consumed + 0.5 * min(size, left or size)
        parts = [0.0]
        if length.steps is not None:
            parts.append((self.worker.progress.ahead(coming) + 0.5) / length.steps)
        if length.samples is not None:
            parts.append(samples / length.samples)
        if length.epochs is not None:
            parts.append(samples / (length.epochs * len(self.worker.job.train)))
        if length.budget is not None:
            parts.append(self.worker.control.used / length.budget)  # what all have agreed on: the rate is theirs too
        return min(1.0, max(parts))

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the rate follows from where the worker is."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
