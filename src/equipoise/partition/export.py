"""Blocks for other libraries: torch subsets, and a partitioner of flwr-datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Subset

from ..core.errors import UserError


def subsets(data: Dataset, blocks: Sequence[np.ndarray]) -> list[Subset]:
    """One `torch.utils.data.Subset` per worker."""
    most = max((int(block.max()) for block in blocks if len(block)), default=-1)
    if most >= len(data):  # type: ignore[arg-type]
        raise UserError(f"the blocks name example {most} and the data has {len(data)}: they were made for other data")  # type: ignore[arg-type]
    return [Subset(data, block.tolist()) for block in blocks]


def flower_partitioner(blocks: Sequence[np.ndarray]) -> Any:
    """A `flwr_datasets.partitioner.Partitioner` that gives client j the rows of block j.

    The rows are those of the data set the blocks were made for: pass `shuffle=False` to `FederatedDataset`.
    """
    try:
        from flwr_datasets.partitioner import Partitioner
    except ImportError:
        raise UserError("this needs a package that is not installed: pip install flwr-datasets") from None

    class Blocks(Partitioner):
        def load_partition(self, partition_id: int) -> Any:
            found = self.dataset.select(blocks[partition_id].tolist())
            if sum(map(len, blocks)) != len(self.dataset):
                total = sum(map(len, blocks))
                raise UserError(
                    f"blocks of {total} examples for {len(self.dataset)} rows: they were made for other data"
                )
            return found

        @property
        def num_partitions(self) -> int:
            return len(blocks)

    return Blocks()
