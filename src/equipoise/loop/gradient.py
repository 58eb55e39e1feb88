"""The gradient of one batch."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..data.training_loss import moved
from .sharpness import sharpness_aware
from .speeds import Work

if TYPE_CHECKING:
    from .worker import Worker


def backward(worker: Worker, indices: np.ndarray) -> float:
    """The gradient that the optimizer shall have for `indices`; their mean loss."""
    work = Work()
    loss = gradient(worker, indices)
    if worker.job.sam is not None and math.isfinite(loss):
        sharpness_aware(worker.model, worker.job.sam, lambda: gradient(worker, indices))
    if not worker.comm.virtual:
        work.slow_down(worker.slow)
    return loss


def gradient(worker: Worker, indices: np.ndarray) -> float:
    """The gradient of the mean loss over `indices`, in micro-batches where the batch is larger than `micro`."""
    worker.flat.zero_gradient(worker.stepper.needs_flat)
    if len(indices) == 0:
        return math.nan
    total = 0.0
    size, watched = worker.job.micro or len(indices), worker.order.watches
    if watched:
        worker.order.watcher.forget()  # a first pass that SAM repeats elsewhere
        size = min(size, worker.order.watcher.examples_per_pass or size)
    for start in range(0, len(indices), size):
        part = indices[start : start + size]
        weight = len(part) / len(indices)
        with worker.order.watcher.watching(worker.model, len(part)) if watched else contextlib.nullcontext():
            loss = loss_of(worker, part)
            torch.autograd.backward(loss if weight == 1.0 else loss * weight)
        total += loss.item() * weight
    return total


def loss_of(worker: Worker, indices: np.ndarray) -> torch.Tensor:
    job, batch = worker.job, worker.job.train.batch(indices)
    if job.device.type != "cpu":
        batch = moved(batch, job.device)
    if job.autocast is None:
        return job.training_loss(worker.model, batch)
    with torch.autocast(job.device.type, dtype=job.autocast):
        return job.training_loss(worker.model, batch)
