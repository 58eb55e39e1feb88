"""Momentum that is part of a method, for methods whose equations contain it."""

from __future__ import annotations

import torch


def nesterov(momentum: torch.Tensor, g: torch.Tensor, beta: float) -> None:
    """m <- beta m + g;  g <- g + beta m, both in place."""
    momentum.mul_(beta).add_(g)
    g.add_(momentum, alpha=beta)
