"""Gradient accumulation at a frozen model, for methods that update it once per period."""

from __future__ import annotations

import torch


def accumulate(total: torch.Tensor, steps: int, g: torch.Tensor, *, due: bool) -> int:
    """total <- total + g, where `total` holds `steps` gradients; when `due`, g becomes the mean and total is zeroed.

    Returns the number of gradients in `total`.
    """
    total.add_(g)
    if not due:
        return steps + 1
    torch.div(total, steps + 1, out=g)
    total.zero_()
    return 0
