"""Where all workers are in one list of examples, of which whoever is free claims the next batch."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from ..batch.base import Batch
from ..comm.base import Comm
from ..core.context import Context
from ..core.errors import CheckpointError
from ..core.marks import mark_sequence
from ..order.base import Order
from .data_position import DataPosition


class WorkUnit(NamedTuple):
    """A batch of this worker, as a part of the list of all epochs, and the claims of all workers after it."""

    start: int
    stop: int
    consumed: int
    largest: int = 0  # batch of any worker

    def state(self) -> dict[str, Any]:
        return self._asdict()


class Claims:
    """The end of what has been claimed of the list: a counter that any worker can raise at any time."""

    def __init__(self, comm: Comm):
        self.comm = comm
        self.go_on_from(0)

    def go_on_from(self, place: int) -> None:
        """Hand out what lies behind `place` next, or behind the last place that any worker names. Collective."""
        last = max(self.comm.gather_objects(place))
        self.origin = last - self.comm.counter("queue", 0)
        self.comm.gather_objects(None)  # nobody claims before all have read the counter

    def claim(self, examples: int) -> tuple[int, int]:
        stop = self.origin + self.comm.counter("queue", examples)
        return stop - examples, stop


# The lists that some worker of this process holds: virtual workers share them.
_lists: WeakValueDictionary[tuple[str, int, int, int], np.ndarray] = WeakValueDictionary()


def epoch_list(order: Order, epoch: int) -> np.ndarray:
    """All examples in the order of this epoch: a function of the order, the seed and the epoch alone."""
    worker = order.context.worker
    key = repr(order), worker.seed, worker.examples, epoch
    known = _lists.get(key)
    if known is None:
        known = _lists[key] = order.epoch(epoch)
    return known


class QueuePosition(DataPosition):
    """Where all workers are in the lists of n examples of all epochs, one after the other: places e n to (e + 1) n - 1
    are those of epoch e.

    In lockstep all workers claim together: of the next m = min(B, left), the worker with batch size b and those of the
    ranks before it c in sum has  floor(m c / B)  to  floor(m (c + b) / B),  B the sum of all. Otherwise each claims
    its batch size when it is free, and a batch may reach into the next epoch.

    What was claimed is a beginning of the list, so that `clock.consumed` says it all; without lockstep it is the end
    of this worker's own last claim, until a round tells those of the others.
    """

    owned: ClassVar[bool] = False

    def __init__(
        self, context: Context, examples: int, block: np.ndarray, order: Order, batch: Batch, lockstep: bool = True
    ):
        super().__init__(context, block, order, batch)
        self.examples = examples  # of an epoch (n)
        self.agreed = 0  # consumed at the last round
        self.claims = None if lockstep else Claims(context.comm)
        self.last = WorkUnit(0, 0, 0)
        self.lists: dict[int, np.ndarray] = {}  # of the epochs at hand
        self.replay: list[WorkUnit] = []  # batches to take as they were drawn before a checkpoint
        self._listed: list[int] = []  # the batch sizes of all workers,
        self._before = self._all = 0  # the sum of those of lower rank, and of all
        self._marked: np.ndarray | None = None  # the list of which `_mark` is
        self._mark = 0
        self.begin(0)

    def begin(self, epoch: int) -> None:
        self.epoch = epoch

    @property
    def size(self) -> int:
        return self.examples

    @property
    def left(self) -> int:
        return max(0, (self.epoch + 1) * self.examples - self.consumed)

    def steps_of_epoch(self) -> int:
        return -(-self.examples // self._together())

    @property
    def steps_left(self) -> int:
        drawn = self.replay[-1].consumed - self.consumed if self.replay else 0
        return len(self.replay) + -(-max(0, self.left - drawn) // self._together())

    def _together(self) -> int:
        """The batch of all workers at the present sizes."""
        sizes = self.batch.sizes()
        if sizes is not self._listed:
            self._listed, self.largest = sizes, max(sizes)
            self._before, self._all = sum(sizes[: self.context.rank]), sum(sizes)
        return self._all

    def take(self) -> tuple[np.ndarray, None]:
        before = self.consumed
        self.last = self.replay.pop(0) if self.replay else self._claim()
        start, stop, self.context.clock.consumed, self.largest = self.last
        self.drawn = self.consumed - before if self.claims is None else stop - start
        return self._examples(start, stop), None

    def _claim(self) -> WorkUnit:
        everyone, largest = self._together(), max(self._listed)
        own = self._listed[self.context.rank]
        if self.claims is not None:
            start, stop = self.claims.claim(own)
            return WorkUnit(start, stop, max(self.consumed, stop), largest)
        assert self.left, "the epoch is over"
        steps = -(-self.left // everyone)
        taken = -(-self.left // steps) if self.batch.spreads else min(everyone, self.left)
        start, stop = (self.consumed + taken * part // everyone for part in (self._before, self._before + own))
        return WorkUnit(start, stop, self.consumed + taken, largest)

    def _examples(self, start: int, stop: int) -> np.ndarray:
        """Those at these places of the list."""
        n = self.examples
        epochs = range(start // n, -(-stop // n)) if start < stop else range(0)
        if epochs:
            self.lists = {e: self.lists[e] if e in self.lists else epoch_list(self.order, e) for e in epochs}
        parts = [self.lists[e][max(0, start - e * n) : stop - e * n] for e in epochs]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def confirm(self, at: WorkUnit | None = None) -> None:
        """Tell of an epoch that is complete."""
        before, self.agreed = self.agreed // self.examples, self.consumed if at is None else at.consumed
        complete = self.agreed // self.examples
        if complete > before:
            self.context.emit("epoch", complete=complete, examples=self.examples)

    def order_marks(self) -> tuple[int, int]:
        if self.claims is not None:  # each worker is in an epoch of its own
            return 0, 0
        examples = self.lists.get(self.epoch)
        if examples is not None and examples is not self._marked:
            self._marked, self._mark = examples, mark_sequence(examples)
        return (self._mark, self._mark) if examples is not None else (0, 0)

    def counts(self, samples: int) -> dict[str, dict[str, int]]:
        """Epochs of which every example was trained on once, and how many of the next one were."""
        epochs, begun = divmod(samples, self.examples)
        return {"queue": {"examples": self.examples, "epochs": epochs, "begun": begun}}

    def taken_now(self) -> WorkUnit:
        return self.last._replace(consumed=self.consumed)

    def state_dict(self) -> dict[str, Any]:
        rows = [claim.state() for claim in self.replay]
        kept = {"examples": self.examples, "epoch": self.epoch, "agreed": self.agreed}
        return {**kept, **self.taken_now().state(), "replay": rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["examples"] != self.examples:
            raise CheckpointError(f"the checkpoint is of {state['examples']} examples and there are {self.examples}")
        self.replay = [WorkUnit(**row) for row in state["replay"]]
        self.last = WorkUnit(**{name: state[name] for name in WorkUnit._fields})
        self._go_on(state["epoch"], state["agreed"], self.last.consumed)

    def rest(self, at: WorkUnit | None = None) -> dict[str, Any]:
        return {"agreed": self.agreed, "consumed": self.consumed if at is None else at.consumed}

    def redistribute(self, states: list[dict[str, Any]]) -> None:
        self.deal(states[0] | {"consumed": max(state["consumed"] for state in states)})

    def deal(self, rest: dict[str, Any]) -> None:
        """The list goes on behind what was agreed on, whoever had claimed it: it is the same for any workers."""
        consumed = rest["consumed"]
        self.replay, self.last = [], WorkUnit(consumed, consumed, consumed)
        self.context.clock.epoch = max(0, consumed - 1) // self.examples  # that of the last example
        self._go_on(self.context.clock.epoch, rest["agreed"], consumed)

    def _go_on(self, epoch: int, agreed: int, consumed: int) -> None:
        self.epoch, self.agreed, self.context.clock.consumed = epoch, agreed, consumed
        if self.claims is not None:
            self.claims.go_on_from(self.replay[-1].consumed if self.replay else consumed)
