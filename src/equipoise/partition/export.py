"""Blocks for other libraries: torch subsets, and a partitioner for flwr-datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from torch.utils.data import Dataset, Subset

from ..core.errors import UserError

T = TypeVar("T")


def subsets(data: Dataset[T], blocks: Sequence[np.ndarray]) -> list[Subset[T]]:
    """One `torch.utils.data.Subset` per worker."""
    count = len(data)  # type: ignore[arg-type]
    most = max((int(block.max()) for block in blocks if len(block)), default=-1)
    if most >= count:
        raise UserError(f"the blocks name example {most} and the data has {count}: they were made for other data")
    return [Subset(data, block.tolist()) for block in blocks]


def flower_partitioner(blocks: Sequence[np.ndarray]) -> Any:
    """A `flwr_datasets.partitioner.Partitioner` that gives client j the rows of block j.

    The rows are those of the data set that the blocks were made for: pass `shuffle=False` to `FederatedDataset`.
    """
    try:
        from flwr_datasets.partitioner import Partitioner
    except ImportError:
        raise UserError("this needs a package that is not installed: pip install flwr-datasets") from None

    class Blocks(Partitioner):  # type: ignore[misc]  # untyped where flwr-datasets is not installed
        def load_partition(self, partition_id: int) -> Any:
            total = sum(map(len, blocks))
            if total != len(self.dataset):
                raise UserError(
                    f"blocks of {total} examples for {len(self.dataset)} rows: they were made for other data"
                )
            return self.dataset.select(blocks[partition_id].tolist())

        @property
        def num_partitions(self) -> int:
            return len(blocks)

    return Blocks()
