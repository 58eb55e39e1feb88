"""One small problem for every method: four classes in eight dimensions, a tanh net with dropout, 4 workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

import equipoise as eq
from equipoise.config import registry

TRAINED = ("partition", "order", "batch", "period", "sync")
AXES = ("partition", "order", "batch", "period", "topology", "sync")
EXAMPLES, WORKERS, STEPS = 203, 4, 18  # an epoch of batches of 8 is 7 steps: the third has begun

generator = torch.Generator().manual_seed(5)
INPUTS = torch.randn(EXAMPLES, 8, generator=generator)
TARGETS = (INPUTS @ torch.randn(8, 4, generator=generator)).argmax(1)


def methods(*axes: str) -> list[Any]:
    """Every registered method of these axes, as pytest parameters."""
    import pytest

    return [pytest.param(e.axis, e.name, id=f"{e.axis}-{e.name}") for axis in axes for e in registry.entries(axis)]


def make(axis: str, name: str, folder: Path, workers: int = WORKERS) -> Any:
    """The method with its defaults; only those that carry out what a user wrote down get something to carry out."""
    cls = registry.get(axis, name)
    if name == "edges":
        return cls(links=[(i, i + 1) for i in range(workers - 1)])
    if name == "from-file":
        path = folder / "partition.json"
        path.write_text(json.dumps({"blocks": [list(range(r, EXAMPLES, WORKERS)) for r in range(WORKERS)]}))
        return cls(path=str(path))
    return cls()


def model() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Dropout(0.1), nn.Linear(12, 4))


def settings(method: Any) -> dict[str, Any]:
    """Arguments of `eq.train` that put this method to work."""
    axis = type(method).__module__.split(".")[1]
    chosen: dict[str, Any] = {axis: method}
    if axis == "sync" and not method.needs().every_step:
        chosen["period"] = 2
    if axis == "period":
        chosen["sync"] = eq.sync.PeriodicAverage()
    return {
        "batch": 8,
        "workers": WORKERS,
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.2),
        "deterministic": True,
        "log_every": 5,
        **chosen,
    }


def train(method: Any, *, steps: int = STEPS, **changes: Any) -> eq.Run:
    loss = nn.CrossEntropyLoss()
    return eq.train(model, loss, (INPUTS, TARGETS), **{**settings(method), "steps": steps, **changes})
