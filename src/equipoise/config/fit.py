"""Do choices fit together? `train`, `attach`, the command and `compare` all ask here, before the first step."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..core.errors import UserError
from .registry import get, name_of, names

if TYPE_CHECKING:
    from ..batch.base import Batch
    from ..order.base import Order
    from ..partition.base import Partition
    from ..period.base import Period
    from ..sync.base import Sync
    from ..wire.base import Wire

BUFFERS = ("local", "average", "recompute")
NONFINITE = ("stop", "skip", "leave-out")
_SIZES = 32  # most workers for which every graph is looked at before an elastic run begins


def check_fit(
    *,
    period: Period,
    sync: Sync,
    order: Order | None = None,
    batch: Batch | None = None,
    partition: Partition | None = None,
    wire: Wire | None = None,
    workers: int | None = None,
    drop_last: bool = False,
) -> None:
    """Refuse choices that cannot work together, with the fix.

    A topology is checked where the number of workers is known.
    """
    _check_sync(period, sync)
    if not period.lockstep:
        _check_asynchronous(period, order, batch)
    remeasured = bool(getattr(partition, "remeasure", 0))
    learned = getattr(partition, "features", None) == "model"
    if learned and ((order is not None and order.watches) or not period.lockstep):
        raise UserError(
            "features = 'model' redistributes examples after the first epoch: use order reshuffle, a period such as "
            "every, or eq.features.penultimate(model) of a model that is trained already"
        )
    if order is not None and order.watches and remeasured:
        raise UserError(
            f"remeasure redistributes examples between epochs and {name_of(order)} learns the order of one block: use "
            "reshuffle, or remeasure 0"
        )
    if not period.lockstep and remeasured:
        raise UserError("remeasure needs workers that end their epochs together: use period every, or remeasure 0")
    if partition is not None and order is not None:
        check_claims(partition, order, drop_last)
    if workers is not None and workers > 1:
        sync.check_graph(workers)
        sync.check_world(workers)
        if wire is not None and not wire.plain:
            _check_wire(sync, wire, workers)


def check_claims(partition: Partition, order: Order, drop_last: bool) -> None:
    """Where workers claim batches of one list: a list that is the same for all, and has all examples."""
    if partition.claimed and order.watches:
        raise UserError(
            f"{name_of(order)} learns the order of a block that its worker owns, and {name_of(partition)} hands out "
            "batches of one list: use reshuffle, or partition iid"
        )
    if partition.claimed and drop_last:
        raise UserError(f"drop_last leaves examples out, and {name_of(partition)} hands out each one: drop one of them")


def check_elastic(
    least: int,
    most: int,
    *,
    period: Period,
    sync: Sync,
    wire: Wire | None = None,
    batch: Batch | None = None,
    partition: Partition | None = None,
) -> None:
    """Refuse choices that need a fixed number of workers, or one that `least` to `most` workers cannot have."""
    if not (period.lockstep or (partition is not None and partition.claimed)):
        raise UserError(
            f"{type(period).__name__} lets each worker go through its own block, of which the others know nothing when "
            "it is lost: use partition queue, or a period such as every, with elastic"
        )
    for axis, method in (("batch", batch), ("partition", partition)):
        for name in ("size", "speeds"):
            if isinstance(getattr(method, name, None), list):
                raise UserError(f"{axis}.{name} lists a number for each worker, and with elastic workers come and go")
    if getattr(partition, "features", None) == "model":
        raise UserError("features = 'model' divides once, and with elastic workers come and go: use other features")
    if partition is not None and name_of(partition) == "from-file":
        raise UserError("a partition file is made for one number of workers: use another partition with elastic")
    for workers in range(max(least, 2), min(most, _SIZES) + 1):
        try:
            sync.check_graph(workers)
            sync.check_world(workers)
            if wire is not None and not wire.plain:
                _check_wire(sync, wire, workers)
        except UserError as error:
            raise UserError(f"elastic = {least}:{most}, but with {workers} workers: {error}") from None


def _check_sync(period: Period, sync: Sync) -> None:
    needs = sync.needs()
    if not period.lockstep and (needs.every_step or needs.due_before_step):
        raise UserError(
            f"{type(period).__name__} decides on a round when a step is over, and {type(sync).__name__} must know "
            "before: use period every, or a sync that acts at rounds only (periodic-average, easgd, lsgd, mgrawa)"
        )
    if needs.every_step and not period.at_every_step():
        steps = getattr(period, "steps", None)
        what = f"a period of {steps}" if name_of(period) == "every" else f"the period {type(period).__name__}"
        raise UserError(
            f"{type(sync).__name__} communicates at every step, so {what} means nothing: use periodic-average to "
            "communicate rarely"
        )


def _check_wire(sync: Sync, wire: Wire, workers: int) -> None:
    takes, why = sync.takes_wires(workers)
    if not _fits(takes, wire):
        others = [name for name in names("wire") if name != "float32" and _fits(takes, get("wire", name)())]
        use = f"{', '.join(others)} or float32" if others else "float32"
        raise UserError(f"{type(sync).__name__} cannot send through wire {name_of(wire)}: {why}: use {use}")


def _fits(takes: str, wire: Wire) -> bool:
    return {"all": True, "dense": wire.dense, "casts": wire.memoryless, "none": False}[takes]


def _check_asynchronous(period: Period, order: Order | None, batch: Batch | None) -> None:
    """A period without lockstep lets each worker take its own number of steps between rounds."""
    if batch is not None and batch.watches:
        raise UserError(
            f"{type(batch).__name__} compares workers that take the same steps, and {type(period).__name__} lets each "
            "take its own: use a period such as every"
        )
    if order is not None and order.coordinated:
        raise UserError(
            f"{type(order).__name__} needs all workers at every step, and {type(period).__name__} lets each take its "
            "own: use id-grab, or a period such as every"
        )


def check_settings(*, buffers: str, nonfinite: str, seed: int) -> None:
    if buffers not in BUFFERS:
        raise UserError(f"buffers = {buffers!r}: one of {', '.join(BUFFERS)}")
    if nonfinite not in NONFINITE:
        raise UserError(f"nonfinite = {nonfinite!r}: one of {', '.join(NONFINITE)}")
    if seed < 0:
        raise UserError(f"seed = {seed}: must not be negative")


def warn_of_one_epoch(order: Order, epochs: float | None) -> None:
    """An order that learns uses in one epoch what it learned in the one before."""
    if order.watches and epochs is not None and epochs <= 1:
        logging.getLogger("equipoise").warning(
            "nothing to gain from order %s in one epoch: it learns from one epoch what it does in the next",
            type(order).__name__,
        )
