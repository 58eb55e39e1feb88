"""The learning rate over the part of the run that is done, counted in samples where the run is.

Batch sizes may change while a run goes on: the number of steps to its end is not known, that of samples is.
The rate is taken at the middle of the coming step: neither the first nor the last is wasted on a rate of zero.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ..core.errors import UserError

if TYPE_CHECKING:
    from ..batch.noise import NoiseEstimate
    from .worker import Worker


def factor(kind: str, warmup: float, done: float) -> float:
    """What the learning rate is multiplied by when the part `done` of the run is over."""
    if done < warmup:
        return done / warmup
    rest = (done - warmup) / (1.0 - warmup)
    if kind == "linear":
        return 1.0 - rest
    return 0.5 * (1.0 + math.cos(math.pi * rest)) if kind == "cosine" else 1.0


def gain(scaling: str, scale: float, first: float, noise: NoiseEstimate | None) -> float:
    """What the learning rate is multiplied by when all workers' batch is `scale` times the `first` one.

        linear: S        sqrt: sqrt(S)        adascale: (s + q) / (s / S + q),  s = tr S / first batch, q = |G|^2

    AdaScale grows with the batch as long as noise rules and no longer once the gradient does; it lies between 1 and S.
    References: Goyal et al., 2017 (arXiv 1706.02677); Johnson, Agrawal, Gu, Guestrin, AdaScale SGD, ICML 2020.
    """
    if scaling == "linear":
        return scale
    if scaling == "sqrt":
        return math.sqrt(scale)
    if scaling == "adascale" and noise is not None and scale != 1.0:
        variance, square = noise.variance / first, max(noise.square, 0.0)
        return (variance + square) / (variance / scale + square) if variance > 0 else 1.0
    return 1.0


class LRSchedule:
    """Sets the learning rate of one worker's optimizer before every step."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, kind: str = "constant", warmup: float = 0.0, scaling: str = "none"
    ):
        self.optimizer, self.kind, self.warmup, self.scaling = optimizer, kind, warmup, scaling
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.worker: Worker | None = None

    def follow(self, worker: Worker) -> None:
        """Take the progress from this worker from now on."""
        self.worker = worker
        if self.scaling == "adascale" and not worker.batch.watches:
            raise UserError(
                "adascale reads the noise that a batch rule measures: use --batch norm-test or another one that does, "
                "or scale the learning rate by linear or sqrt"
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
