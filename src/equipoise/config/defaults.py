"""What is used where nothing was said. Python arguments, recipes and the command line all read it here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .registry import get

if TYPE_CHECKING:
    from ..batch.base import Batch
    from ..order.base import Order
    from ..partition.base import Partition
    from ..period.base import Period
    from ..sync.base import Sync
    from ..wire.base import Wire

NAMES = {
    "partition": "iid",
    "order": "reshuffle",
    "batch": "fixed",
    "period": "every",
    "topology": "ring",
    "wire": "float32",
    "data": "digits",
}
WORKERS = 4
EPOCHS = 1.0
EPOCHS_TO_TARGET = 100.0  # where a target is all that is said of a run's length
BATCH_SIZE = 32
LEARNING_RATE = {"sgd": 0.1, "adam": 0.001, "adamw": 0.001}


def sync_name(round_at_every_step: bool) -> str:
    """Gradients are averaged at every step; a period that asks for rare rounds averages parameters instead."""
    return "all-reduce" if round_at_every_step else "periodic-average"


def default(axis: str) -> Any:
    """The default method of an axis."""
    return get(axis, NAMES[axis])()


def chosen_period(period: Period | int | None) -> Period:
    """A number H stands for a round every H steps."""
    every = get("period", "every")
    return every(period) if isinstance(period, int) else period if period is not None else every()


def chosen_batch(batch: Batch | int | list[int] | None) -> Batch:
    """A number stands for a fixed size, a list for one size per worker."""
    if batch is None or isinstance(batch, (int, list)):
        fixed: Batch = get("batch", "fixed")(BATCH_SIZE if batch is None else batch)
        return fixed
    return batch


def chosen_sync(sync: Sync | None, period: Period) -> Sync:
    return sync if sync is not None else get("sync", sync_name(period.at_every_step()))()


def chosen_wire(wire: Wire | None) -> Wire:
    return wire if wire is not None else default("wire")


def chosen_order(order: Order | None) -> Order:
    return order if order is not None else default("order")


def chosen_partition(partition: Partition | None) -> Partition:
    return partition if partition is not None else default("partition")
