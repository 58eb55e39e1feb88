"""What the learning rate is multiplied by when the batch of all workers grows."""

from __future__ import annotations

import math

import torch

from .noise import NoiseEstimate

SCALINGS = ("none", "auto", "linear", "sqrt")


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


def chosen_scaling(scaling: str, optimizer: torch.optim.Optimizer | None) -> str:
    """`auto`: linear for SGD; sqrt for optimizers that divide by the size of gradients, which noise is a part of."""
    if scaling != "auto":
        return scaling
    return "linear" if optimizer is None or isinstance(optimizer, torch.optim.SGD) else "sqrt"
