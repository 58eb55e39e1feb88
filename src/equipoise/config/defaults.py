"""What is used where nothing was said. Python arguments, recipes and the command line all read it here."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.errors import UserError
from ..core.method import Configurable
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
_Given = TypeVar("_Given")
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
    if period is None or isinstance(period, (int, Integral)):
        made: Period = every() if period is None else every(int(period))
        return made
    return _method("period", period, ", or a number of steps")


def chosen_batch(batch: Batch | int | list[int] | None) -> Batch:
    """A number stands for a fixed size, a list for one size per worker."""
    if batch is None or isinstance(batch, (int, Integral, list, tuple)) or hasattr(batch, "tolist"):
        size = BATCH_SIZE if batch is None else list(batch) if isinstance(batch, tuple) else batch
        fixed: Batch = get("batch", "fixed")(size)
        return fixed
    return _method("batch", batch, ", a number of examples, or a list with one for each worker")


def chosen_sync(sync: Sync | None, period: Period) -> Sync:
    return _method("sync", sync) if sync is not None else get("sync", sync_name(period.at_every_step()))()


def chosen_wire(wire: Wire | None) -> Wire:
    return _method("wire", wire) if wire is not None else default("wire")


def chosen_order(order: Order | None) -> Order:
    return _method("order", order) if order is not None else default("order")


def chosen_partition(partition: Partition | None) -> Partition:
    return _method("partition", partition) if partition is not None else default("partition")


def _method(axis: str, given: _Given, others: str = "") -> _Given:
    """A method of this axis; anything else, such as its name or its class, is refused."""
    if isinstance(given, Configurable) and given.axis == axis:
        return given
    named = get(axis, NAMES.get(axis, sync_name(True)))
    if isinstance(given, type) and getattr(given, "axis", "") == axis:
        named = given
    elif isinstance(given, str) and not given.isdigit():
        named = get(axis, given)  # an unknown name is refused with the nearest known one
    example = f"eq.{axis}.{named.__name__}()"
    raise UserError(f"{axis} = {given!r}: pass a method of this axis, such as {example}{others}")
