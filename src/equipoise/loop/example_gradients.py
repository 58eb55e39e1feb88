"""Gradients of single examples of the batch at hand, taken beside the training: nothing of it changes but the time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.random import rng_state, set_rng_state
from ..core.vector import Flat


def example_gradients(
    model: nn.Module, flat: Flat, loss_of: Callable[[np.ndarray], torch.Tensor], indices: np.ndarray
) -> list[torch.Tensor]:
    """Flat gradients of the examples at `indices`, one backward pass each.

    BatchNorm uses its running statistics, as one example has none of its own; dropout and the like are drawn afresh.
    """
    parameters = list(flat.parameters.values())
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.training]
    rng, rows = rng_state(), []
    for module in norms:
        module.eval()
    try:
        for at in range(len(indices)):
            gradients = torch.autograd.grad(loss_of(indices[at : at + 1]), parameters, allow_unused=True)
            row = torch.zeros_like(flat.x)
            for s, gradient in zip(flat.slices, gradients, strict=True):
                if gradient is not None:
                    row[s.start : s.stop].copy_(gradient.reshape(-1))
            rows.append(row)
    finally:
        for module in norms:
            module.train()
        set_rng_state(rng)
    return rows
