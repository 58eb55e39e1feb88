"""Gradients of single examples of the batch at hand, taken beside the training: nothing of it changes but the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.random import rng_state, set_rng_state
from .gradient import loss_of

if TYPE_CHECKING:
    from .worker import Worker


def example_gradients(worker: Worker, count: int) -> list[torch.Tensor]:
    """Flat gradients of the first `count` examples of this step's batch (0: all), one backward pass each.

    BatchNorm uses its running statistics, as one example has none of its own; dropout and the like are drawn afresh.
    """
    flat = worker.flat
    parameters = list(flat.parameters.values())
    indices = worker.indices[:count] if count else worker.indices
    norms = [m for m in worker.model.modules() if isinstance(m, _BatchNorm) and m.training]
    rng, rows = rng_state(), []
    for module in norms:
        module.eval()
    try:
        for at in range(len(indices)):
            found = torch.autograd.grad(loss_of(worker, indices[at : at + 1]), parameters, allow_unused=True)
            row = torch.zeros_like(flat.x)
            for s, gradient in zip(flat.slices, found, strict=True):
                if gradient is not None:
                    row[s.start : s.stop].copy_(gradient.reshape(-1))
            rows.append(row)
    finally:
        for module in norms:
            module.train()
        set_rng_state(rng)
    worker.comm.computed(len(indices) * worker.cost)
    return rows
