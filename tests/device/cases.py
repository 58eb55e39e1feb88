"""Every registered method that computes with tensors of the model, by name; orders with every signal too."""

from __future__ import annotations

from typing import Any

from torch import nn

from equipoise.config import registry
from equipoise.core.random import seed_torch
from equipoise.signal import SIGNALS
from equipoise.testing import toy as testing_toy

from ..contract import toy

WORKERS, STOP, STEPS = 3, 5, 12  # an epoch of the toy is nine steps on three workers


_original = testing_toy.model


def seeded_model() -> nn.Module:
    """The toy's. It is built on the CPU: afterwards the generators of all devices begin alike."""
    net = _original()
    seed_torch(12)
    return net


def methods() -> dict[str, Any]:
    rows = {f"{axis}-{name}": toy.make(axis, name) for axis in ("sync", "wire", "batch") for name in names(axis)}
    for name in names("order"):
        cls = registry.get("order", name)
        rows[f"order-{name}"] = cls()
    balance = registry.get("order", "pair-balance")
    for signal in SIGNALS:
        if signal != "forward":  # forward mode has tensors without memory, which the device cannot hold
            rows[f"order-pair-balance-{signal}"] = balance(signal=signal, group=4 if signal == "batch" else 1)
    rows["order-pair-balance-kept"] = balance(signal="projection", sweeps=2)
    return rows


def names(axis: str) -> list[str]:
    return registry.names(axis)
