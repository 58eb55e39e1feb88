from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..core.errors import DataError
from ..core.json import parse_json
from ..core.method import Metadata, option
from ..data.view import DatasetView
from .base import Partition


@dataclass
class FromFile(Partition):
    """The blocks of a partition file: `{"blocks": [[indices of worker 0], ...], "speeds": ..., "report": ...}`."""

    metadata: ClassVar[Metadata] = Metadata(name="from-file", help="the blocks of a partition file")

    path: str = option("", help="the partition file (JSON)")

    def split(self, view: DatasetView, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
        blocks = read_blocks(self.path)
        if len(blocks) != workers:
            raise DataError(
                f"{self.path} has {len(blocks)} blocks for {workers} workers: run with --workers {len(blocks)}"
            )
        indices = np.concatenate(blocks) if blocks else np.empty(0, dtype=np.int64)
        if len(indices) != view.examples or not np.array_equal(np.sort(indices), np.arange(view.examples)):
            raise DataError(
                f"{self.path} holds {len(indices)} indices ({len(np.unique(indices))} different) and the data has "
                f"{view.examples} examples: it was made for other data"
            )
        return blocks


def read_blocks(path: str | Path) -> list[np.ndarray]:
    """The blocks of indices of a partition file; a `DataError` of one line where it is not one."""
    if not path:
        raise DataError("partition from-file needs a file: pass --partition.path FILE")
    try:
        table = parse_json(Path(path).read_text())
        blocks = [np.asarray(block, dtype=np.int64) for block in table["blocks"]]
        for block, row in zip(blocks, table["blocks"], strict=True):
            if block.ndim != 1 or block.tolist() != row:
                raise ValueError("blocks must be lists of whole numbers")
    except FileNotFoundError:
        raise DataError(f"partition file {path} does not exist") from None
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise DataError(f"{path} is not a partition file ({type(error).__name__}: {error})") from None
    return blocks


def read_speeds(path: str | Path) -> list[float] | None:
    """The speeds that a partition file was made for, if it lists them."""
    try:
        speeds = parse_json(Path(path).read_text()).get("speeds")
        return [float(rate) for rate in speeds] if isinstance(speeds, list) else None
    except (OSError, ValueError, AttributeError, TypeError, OverflowError) as error:
        raise DataError(f"{path} is not a partition file ({type(error).__name__})") from None


def write_blocks(path: str | Path, blocks: list[np.ndarray], **extra: object) -> None:
    """Write a partition file that `from-file` reads."""
    Path(path).write_text(json.dumps({"blocks": [block.tolist() for block in blocks], **extra}))
