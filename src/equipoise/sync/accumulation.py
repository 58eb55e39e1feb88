"""Gradients gathered at a frozen model, for methods that move it once in a period."""

from __future__ import annotations

import torch


def accumulate(total: torch.Tensor, steps: int, g: torch.Tensor, *, due: bool) -> int:
    """total <- total + g, over `steps` + 1 steps; when `due`, g becomes their mean and the total starts at zero again.

    Returns the number of steps in `total`.
    """
    total.add_(g)
    if not due:
        return steps + 1
    torch.div(total, steps + 1, out=g)
    total.zero_()
    return 0
