"""Equipoise: train one model on unequal workers, with slow links and uneven data.

Names are imported when they are first used: the command must answer `--help` before torch could be loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import batch, order, partition, period, signal, sync, testing, topology, wire
    from .comm.current import close as close
    from .comm.current import rank as rank
    from .comm.current import world_size as world_size
    from .compare.choices import compare as compare
    from .config.citations import cite as cite
    from .config.recipe import Recipe as Recipe
    from .config.registry import register as register
    from .core import errors as errors
    from .core.method import Metadata as Metadata
    from .core.method import option as option
    from .data import features
    from .launch.start import spawn as spawn
    from .loop.attach import attach as attach
    from .loop.sampler import Sampler as Sampler
    from .loop.speeds import measure_speeds as measure_speeds
    from .loop.train import Run as Run
    from .loop.train import train as train
    from .partition.capacity import batch_sizes as batch_sizes
    from .simulate.cluster import Cluster as Cluster
    from .simulate.cluster import Link as Link

__version__ = "0.2.0"
__all__ = [
    "Cluster",
    "Link",
    "Metadata",
    "Recipe",
    "Run",
    "Sampler",
    "__version__",
    "attach",
    "batch",
    "batch_sizes",
    "cite",
    "close",
    "compare",
    "errors",
    "features",
    "measure_speeds",
    "option",
    "order",
    "partition",
    "period",
    "rank",
    "register",
    "signal",
    "spawn",
    "sync",
    "testing",
    "topology",
    "train",
    "wire",
    "world_size",
]

_PACKAGES = ("batch", "compare", "order", "partition", "period", "signal", "sync", "testing", "topology", "wire")
_HOMES = {
    "cite": "config.citations",
    "close": "comm.current",
    "Cluster": "simulate.cluster",
    "Link": "simulate.cluster",
    "Metadata": "core.method",
    "Recipe": "config.recipe",
    "Run": "loop.train",
    "spawn": "launch.start",
    "Sampler": "loop.sampler",
    "attach": "loop.attach",
    "batch_sizes": "partition.capacity",
    "measure_speeds": "loop.speeds",
    "option": "core.method",
    "rank": "comm.current",
    "register": "config.registry",
    "train": "loop.train",
    "world_size": "comm.current",
}
_MODULES = {"errors": "core.errors", "features": "data.features"}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
