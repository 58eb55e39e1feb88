"""Equipoise: train one model on unequal workers, with slow links and uneven data.

Names are imported when they are first used: the command must answer `--help` before torch could be loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import batch, features, order, partition, period, signal, sync, topology
    from .citations import cite as cite
    from .comm.network import Cluster as Cluster
    from .comm.network import Link as Link
    from .launch.start import spawn as spawn
    from .loop.attach import attach as attach
    from .loop.sampler import Sampler as Sampler
    from .loop.train import Run as Run
    from .loop.train import train as train
    from .recipe import Recipe as Recipe
    from .speeds import batch_sizes as batch_sizes
    from .speeds import measure_speeds as measure_speeds

__version__ = "0.1.0"
__all__ = [
    "Cluster",
    "Link",
    "Recipe",
    "Run",
    "Sampler",
    "__version__",
    "attach",
    "batch",
    "batch_sizes",
    "cite",
    "features",
    "measure_speeds",
    "order",
    "partition",
    "period",
    "signal",
    "spawn",
    "sync",
    "topology",
    "train",
]

_AXES = ("batch", "features", "order", "partition", "period", "signal", "sync", "topology")
_HOMES = {
    "cite": "citations",
    "Cluster": "comm.network",
    "Link": "comm.network",
    "Recipe": "recipe",
    "Run": "loop.train",
    "spawn": "launch.start",
    "Sampler": "loop.sampler",
    "attach": "loop.attach",
    "batch_sizes": "speeds",
    "measure_speeds": "speeds",
    "train": "loop.train",
}


def __getattr__(name: str) -> Any:
    if name in _AXES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
