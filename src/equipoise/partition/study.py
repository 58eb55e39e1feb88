"""A partition of one data set with its report: the blocks, the time they took, the file."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UserError
from ..data.view import DatasetView
from .audit import audit
from .base import Partition
from .from_file import FromFile, read_speeds, write_blocks
from .strata import strata


@dataclass
class Study:
    """The blocks that a partition made of one data set, and the report on them."""

    name: str
    blocks: list[np.ndarray]
    report: dict[str, Any]
    method: dict[str, Any]
    seconds: float

    def write(self, path: str | Path) -> None:
        """Write a partition file for `from-file`, with speeds, options and report."""
        try:
            write_blocks(path, self.blocks, speeds=self.report["speeds"], method=self.method, report=self.report)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; choose another file") from None


def study(
    partition: Partition,
    view: DatasetView,
    workers: int,
    *,
    speeds: list[float] | None = None,
    features: Any = None,
    seed: int = 0,
    splits: int = 20,
    name: str = "",
) -> Study:
    """Partition `view` and report. Sizes are compared with `speeds` where the partition has none of its own."""
    from ..config.registry import name_of
    from ..data.features import feature_array

    if partition.claimed:
        raise UserError(f"{name_of(partition)} has no blocks to report on: workers claim examples while they train")
    started = time.perf_counter()
    plan = getattr(partition, "plan", None)
    notes: list[str] = []
    values = None
    if plan is not None:
        division = plan(view, workers, np.random.default_rng([seed, 71]))
        blocks, notes, values = division.blocks, division.notes, division.values
    else:
        blocks = partition.blocks(view, workers, seed)
    seconds = time.perf_counter() - started
    groups, strata_notes = strata(view, getattr(partition, "bins", 10), workers)
    own = read_speeds(partition.path) if isinstance(partition, FromFile) else getattr(partition, "speeds", None)
    chosen = features if features is not None else getattr(partition, "features", "inputs")
    report = audit(
        feature_array(view, chosen),
        groups,
        blocks,
        own if isinstance(own, list) and speeds is None else speeds,
        values=values,
        notes=notes or strata_notes,
        splits=splits,
        seed=seed,
    )
    registered = name_of(partition)
    return Study(name or registered, blocks, report, {"name": registered} | _json_options(partition.options()), seconds)


def _json_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options as JSON has them; arrays and functions by their repr."""
    return {key: value if _is_json(value) else repr(value) for key, value in options.items() if value is not None}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True
