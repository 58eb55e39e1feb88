"""A small classification problem, and the loop that anybody would write for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import equipoise as eq
from equipoise.core.random import rng_state, seed_worker, set_rng_state

EXAMPLES = 52
_generator = torch.Generator().manual_seed(5)
INPUTS = torch.randn(EXAMPLES, 6, generator=_generator)
TARGETS = (INPUTS[:, :3].argmax(1) + (torch.rand(EXAMPLES, generator=_generator) < 0.1)) % 3
DATA = INPUTS, TARGETS
AS_IT_LIES: dict[str, Any] = {"partition": eq.partition.Contiguous(), "order": eq.order.Sequential()}


def plain() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def with_dropout() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 3))


def with_norm() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def sgd(p: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(p, lr=0.2)


def momentum(p: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)


def adam(p: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(p, lr=0.01)


def adamw(p: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)


def train(model: Any = plain, optimizer: Any = sgd, **options: Any) -> eq.Run:
    return eq.train(model, cross_entropy, DATA, optimizer=optimizer, **options)


def by_hand(
    batches: list[torch.Tensor],
    model: Callable[[], nn.Module] = plain,
    optimizer: Any = sgd,
    scheduler: Any = None,
    clip: float | None = None,
) -> nn.Module:
    """The loop of every tutorial over the given batches of indices, on worker 0's random stream."""
    kept = rng_state()
    try:
        trained = copy.deepcopy(model())
        seed_worker(0, 0)
        opt = optimizer(trained.parameters())
        schedule = scheduler(opt) if scheduler is not None else None
        for batch in batches:
            opt.zero_grad()
            cross_entropy(trained(INPUTS[batch]), TARGETS[batch]).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(trained.parameters(), clip)
            opt.step()
            if schedule is not None:
                schedule.step()
        return trained
    finally:
        set_rng_state(kept)


def vector(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])
