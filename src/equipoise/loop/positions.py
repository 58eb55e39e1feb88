"""The position that goes with a partition."""

from __future__ import annotations

import dataclasses

import numpy as np

from ..batch.base import Batch
from ..core.context import Context, WorkerInfo
from ..order.base import Order
from ..partition.base import Partition
from ..partition.capacity import capacities
from .data_position import DataPosition
from .position import Position
from .queue_position import QueuePosition


def position_of(
    partition: Partition,
    context: Context,
    blocks: list[np.ndarray],
    order: Order,
    batch: Batch,
    *,
    drop_last: bool = False,
    lockstep: bool = True,
    shared: bool = False,
) -> DataPosition:
    """Where a worker begins. Binds `order` and `batch`. shared: what is left must outlive the worker that has it."""
    if not partition.claimed:
        return Position(context, blocks, order.bind(context), batch.bind(context), drop_last, lockstep, shared)
    examples = sum(map(len, blocks))
    # One list for all: the order sees a single worker that has all examples.
    one = WorkerInfo(seed=context.worker.seed, examples=examples, total_examples=examples)
    order = order.bind(dataclasses.replace(context, worker=one))
    return QueuePosition(context, examples, blocks[context.rank], order, batch.bind(context), lockstep)


def sizes_of(partition: Partition, batch: Batch, blocks: list[np.ndarray]) -> list[int]:
    """The examples of each worker: those of its block; of a queue as many as its batches let it claim."""
    sizes = [len(block) for block in blocks]
    listed = getattr(batch, "size", None)
    if partition.claimed and isinstance(listed, list) and len(listed) == len(blocks):
        claimed: list[int] = capacities([sum(sizes)], np.array(listed, dtype=np.float64))[0].tolist()
        return claimed
    return sizes
