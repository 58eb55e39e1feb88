"""The gradient of one batch."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ..core.device import numbers
from ..data.training_loss import moved
from .one_example import refuse_one_example
from .sharpness import sharpness_aware
from .speeds import Work

if TYPE_CHECKING:
    from .worker import Worker


class Measured(NamedTuple):
    """What the host knows of a gradient. It is read in one go: a device is waited for once."""

    loss: float  # of the batch, a mean
    total: float | None = None  # the sum of the gradient, where its finiteness decides
    overflowed: bool = False  # in float16, on any worker: the batch counts for nothing


def backward(worker: Worker, indices: np.ndarray) -> Measured:
    """The gradient that the optimizer shall have for `indices`; their mean loss."""
    work = Work()
    measured = gradient(worker, indices)
    if worker.job.sam is not None and math.isfinite(measured.loss):
        loss = measured.loss
        sharpness_aware(worker.model, worker.job.sam, lambda: gradient(worker, indices))
        measured = Measured(loss)
    if not worker.comm.virtual:
        work.slow_down(worker.slow)
    return measured


def gradient(worker: Worker, indices: np.ndarray) -> Measured:
    """The gradient of the mean loss over `indices`, in micro-batches where the batch is larger than `micro`."""
    worker.flat.zero_gradient(worker.stepper.needs_flat)
    if len(indices) == 0:
        overflowed = worker.scale is not None and any(numbers(worker.scale.unscale(worker.flat.x)))
        return Measured(math.nan, overflowed=overflowed)
    losses: list[torch.Tensor] = []
    weights: list[float] = []
    size, watched = worker.job.micro or len(indices), worker.order.learning
    if watched:
        worker.order.watcher.forget()  # a first pass that SAM repeats elsewhere
        size = min(size, worker.order.watcher.examples_per_pass or size)
    for start in range(0, len(indices), size):
        part = indices[start : start + size]
        weight = len(part) / len(indices)
        with worker.order.watcher.watching(worker.model, len(part)) if watched else contextlib.nullcontext():
            try:
                loss = loss_of(worker, part)
            except ValueError as error:
                if len(indices) == 1:
                    refuse_one_example(error, worker.comm.rank, worker.clock.step + 1)
                raise
            scaled = loss if weight == 1.0 else loss * weight
            torch.autograd.backward(scaled if worker.scale is None else worker.scale.scaled(scaled))
        losses.append(loss.detach())
        weights.append(weight)
    flag = [worker.scale.unscale(worker.flat.x)] if worker.scale is not None else []
    watches = worker.device.type != "cpu" and worker.stepper.needs_flat and worker.stepper.guard.watches_gradient
    read = numbers(*losses, *flag, *([worker.flat.gradient().sum()] if watches else []))
    total = 0.0
    for value, weight in zip(read, weights, strict=False):
        total += value * weight
    return Measured(total, read[-1] if watches else None, bool(flag) and read[len(losses)] != 0.0)


def loss_of(worker: Worker, indices: np.ndarray) -> torch.Tensor:
    job, batch = worker.job, worker.job.train.batch(indices)
    if worker.device.type != "cpu":
        batch = moved(batch, worker.device)
    if job.autocast is None:
        return job.training_loss(worker.model, batch)
    with torch.autocast(worker.device.type, dtype=job.autocast):
        return job.training_loss(worker.model, batch)
