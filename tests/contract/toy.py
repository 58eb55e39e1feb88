"""The toy problem of `equipoise.testing` for every registered method."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from equipoise.config import registry
from equipoise.testing.toy import EXAMPLES as EXAMPLES
from equipoise.testing.toy import INPUTS as INPUTS
from equipoise.testing.toy import STEPS as STEPS
from equipoise.testing.toy import TARGETS as TARGETS
from equipoise.testing.toy import WORKERS as WORKERS
from equipoise.testing.toy import attach as attach
from equipoise.testing.toy import model as model
from equipoise.testing.toy import optimizer as optimizer
from equipoise.testing.toy import settings as settings
from equipoise.testing.toy import train as train

TRAINED = ("partition", "order", "batch", "period", "sync")
AXES = ("partition", "order", "batch", "period", "topology", "sync", "wire")

SMALL = {"keep": 1 / 4, "block": 32, "chunk": 16}  # options of a wire for a model of 160 parameters


def methods(*axes: str) -> list[Any]:
    """Every registered method of these axes, as pytest parameters."""
    return [pytest.param(e.axis, e.name, id=f"{e.axis}-{e.name}") for axis in axes for e in registry.entries(axis)]


def make(axis: str, name: str, folder: Path = Path(), workers: int = WORKERS) -> Any:
    """The method with its defaults, and a wire with blocks that are small enough for the toy's model.

    Only those that carry out what a user wrote down get something to carry out.
    """
    cls = registry.get(axis, name)
    if name == "edges":
        return cls(links=[(i, i + 1) for i in range(workers - 1)])
    if name == "from-file":
        path = folder / f"partition-{workers}.json"
        path.write_text(json.dumps({"blocks": [list(range(r, EXAMPLES, workers)) for r in range(workers)]}))
        return cls(path=str(path))
    if axis == "wire":
        fields = {field.name for field in dataclasses.fields(cls)}
        return cls(**{option: value for option, value in SMALL.items() if option in fields})
    return cls()
