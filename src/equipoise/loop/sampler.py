"""`eq.Sampler`: partition, order and batch for a user's own `DataLoader`."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from torch import nn

from ..batch.base import Batch
from ..comm.base import Comm
from ..comm.current import current_comm
from ..config.defaults import chosen_batch, chosen_order, chosen_partition
from ..core.context import Context, describe
from ..core.errors import UserError
from ..core.finite import first_not_finite
from ..data.source import Source
from ..order.base import Order
from ..partition.base import Partition
from .blocks import shared_blocks, speeds_are_measured, with_speeds
from .position import Position, Taken
from .speeds import measure_rates

_last_drawn: WeakKeyDictionary[Comm, weakref.ref[Sampler]] = WeakKeyDictionary()  # whose batches a worker trains on


class Drawn(NamedTuple):
    """A batch that the loader has drawn."""

    size: int
    places: np.ndarray | None  # in this worker's block, for an order that learns
    largest: int  # batch of any worker


class Sampler:
    """`partition`, `order` and `batch` for a user's own `DataLoader(batch_sampler=...)`.

    Every worker yields the same number of batches per epoch, so that collectives in the loop match. A worker whose
    block is smaller than the number of steps repeats examples of its own instead of leaving the others waiting.
    Iterating starts at the saved position, or at the next epoch once one is finished.

    step: one training step without communication, on the same number of examples on all workers, for a partition
        with `speeds="measured"`. All workers call it before the data is divided.

    group: as in `eq.attach`.

    An order that learns from gradients sees them through `with sampler.watching(model):` around forward and backward.

    With `DataLoader(num_workers=k)` batches are drawn ahead of time. A change of batch sizes takes effect once those
    are used up, at the same step on all workers if all have the same `num_workers` and `prefetch_factor`.
    `eq.attach(sampler=...)` counts the batches that were used; without it, pass the number that your loop has
    finished to `state_dict(finished)`.
    """

    def __init__(
        self,
        data: Any,
        *,
        partition: Partition | None = None,
        order: Order | None = None,
        batch: Batch | int | list[int] = 32,
        seed: int = 0,
        drop_last: bool = False,
        step: Callable[[], Any] | None = None,
        group: Any = None,
    ):
        self.comm = current_comm(group)
        self.source = data if isinstance(data, Source) else Source(data)
        self.order_choice, self.batch_choice = chosen_order(order), chosen_batch(batch)
        self.partition = chosen_partition(partition)
        self.drop_last = drop_last
        self.blocks = shared_blocks(self._divided_by_speed(step), self.source.view(), self.comm, seed)
        self.worker = describe(self.comm, seed=seed, sizes=[len(block) for block in self.blocks])
        self.epoch = 0
        self.finished = 0  # batches of this iteration that optimizer steps have used
        self._position: Position | None = None
        self._deferred = False  # does the step, and not `watching`, hand gradients to the order?
        self._queue: deque[Drawn] = deque()  # drawn, and not yet used by an optimizer step
        self._since_step = 0  # batches drawn since the last optimizer step
        self._started = False  # has an optimizer step used a batch of this iteration?
        self._starts: list[Taken] = []  # before each batch of this iteration, and after the last
        self._unwatched: deque[np.ndarray | None] = deque()  # places of batches that were drawn and not watched yet
        self._watched = 0  # batches of this iteration that were watched
        self._restore_rng: Callable[[], None] | None = None

    def _divided_by_speed(self, step: Callable[[], Any] | None) -> Partition:
        if not speeds_are_measured(self.partition):
            return self.partition
        if step is None:
            raise UserError("speeds='measured' needs a step to measure: pass step=, one training step, to eq.Sampler")
        rates = measure_rates(step, 1.0, self.comm)
        chosen: Partition = with_speeds(self.partition, rates)
        return chosen

    # -- binding -------------------------------------------------------------------------------------------------------
    def bind(self, context: Context, *, lockstep: bool = True, deferred: bool = True) -> None:
        """Let order and batch rule use this context from now on; what they have learned so far is kept."""
        state = self.state_dict() if self._position is not None else None
        # The streams of order and batch rule follow from the sampler's own seed.
        context = dataclasses.replace(context, worker=dataclasses.replace(context.worker, seed=self.worker.seed))
        order, batch = self.order_choice.bind(context), self.batch_choice.bind(context)
        self._position = Position(context, self.blocks, order, batch, self.drop_last, lockstep)
        self._deferred = deferred
        if state is not None:
            self.load_state_dict(state)

    @property
    def position(self) -> Position:
        if self._position is None:
            self.bind(Context(self.comm, worker=self.worker), deferred=False)
        assert self._position is not None
        return self._position

    @property
    def order(self) -> Order:
        return self.position.order

    @property
    def batch(self) -> Batch:
        return self.position.batch

    # -- batches -------------------------------------------------------------------------------------------------------
    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are left of `count`: after a resume, from the one in progress on."""
        first = self.epoch + (self.position.steps_left == 0)
        yield from range(first, count)

    def continue_with(self, restore_rng: Callable[[], None]) -> None:
        """Put the random generators back when the epoch in progress goes on.

        A DataLoader draws a random number whenever it makes an iterator.
        """
        self._restore_rng = restore_rng

    def __len__(self) -> int:
        return self.position.steps_left or self.position.steps_of_epoch()

    def __iter__(self) -> Iterator[list[int]]:
        position = self.position
        restore, self._restore_rng = self._restore_rng, None
        if position.steps_left == 0:
            self.epoch += 1
            position.begin(self.epoch)
        elif restore is not None and position.taken.any():
            restore()
        self._starts, self.finished = [position.taken_now()], 0
        self._unwatched.clear()
        self._queue.clear()
        self._since_step, self._started, self._watched = 0, False, 0
        _last_drawn[self.comm] = weakref.ref(self)
        while position.steps_left:
            indices, places = position.take()
            self._starts.append(position.taken_now())
            self._unwatched.append(places)
            self._queue.append(Drawn(len(indices), places, position.largest))
            self._since_step += 1
            yield indices.tolist() or position.block[:1].tolist()
        if self.order.watches and not self._watched:
            logging.getLogger("equipoise").warning(self._unwatched_words())

    def _unwatched_words(self) -> str:
        return (
            f"{type(self.order).__name__} learns from gradients and sees none: put `with sampler.watching(model):` "
            "around forward and backward"
        )

    def use(self, accumulate: int) -> tuple[int, int, np.ndarray | None]:
        """An optimizer step uses the next `accumulate` batches: examples, largest batch, places of a single one.

        A loader that draws ahead draws many before the first step, and `accumulate` for each step after it.
        """
        if self._started and self._since_step > accumulate:
            raise UserError(
                f"{self._since_step} batches were drawn for one optimizer step: pass accumulate={self._since_step} to "
                "attach if the loop accumulates their gradients"
            )
        count = min(accumulate, len(self._queue))
        used = [self._queue.popleft() for _ in range(count)]
        self._started, self._since_step = True, 0
        self.finished += count
        if self.order.watches and self._watched < self.finished:
            raise UserError(self._unwatched_words())
        places = used[0].places if count == 1 else None
        return sum(drawn.size for drawn in used), max((drawn.largest for drawn in used), default=1), places

    @contextlib.contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Around forward and backward of one batch, so that the order learns from its gradients.

        Once per batch, in the order in which they were drawn; an order that learns nothing is not disturbed by it.
        The loss must be a mean over the batch. Gradients that were accumulated before are left alone.
        """
        order = self.order
        if not order.watches:
            yield
            return
        if not self._unwatched:
            raise UserError(
                "watching() without a batch of this sampler: use it inside the loop over the loader, once per batch"
            )
        places = self._unwatched.popleft()
        self._watched += 1
        watcher = order.watcher
        watcher.forget()
        # A worker without examples was given one of its own again: it counts for nothing.
        with watcher.watching(model, 1 if places is None or not len(places) else len(places)):
            yield
        if places is not None and not self._deferred:
            bad = first_not_finite([p.grad for p in model.parameters() if p.grad is not None]) is not None
            places = places[:0] if bad else places  # the order must not learn from a batch that will not count
            order.observe(places, watcher.view() if len(places) else None)

    # -- state ---------------------------------------------------------------------------------------------------------
    def state_dict(self, finished: int | None = None) -> dict[str, Any]:
        """Everything needed to go on. `finished`: batches of this iteration that the loop has completed."""
        position = self.position.state_dict()
        if finished is not None:
            starts = self._starts or [self.position.taken_now()]
            if not 0 <= finished < len(starts):
                raise UserError(f"finished={finished} but only {len(starts) - 1} batches were drawn in this iteration")
            position |= starts[finished].state() | {"replay": [taken.state() for taken in starts[finished + 1 :]]}
        return {
            "epoch": self.epoch,
            "position": position,
            "order": self.order.state_dict(),
            "batch": self.batch.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.load_state_dict(state["order"])
        self.batch.load_state_dict(state["batch"])
        self.epoch = state["epoch"]
        self.position.load_state_dict(state["position"])
        self._starts, self.finished = [], 0


def refuse_unknown_sampler(comm: Comm) -> None:
    """Refuse a batch rule that measures gradients in a loop of which it does not know the steps."""
    drawn = _last_drawn.get(comm)
    sampler = drawn() if drawn is not None else None
    if sampler is not None and sampler.batch_choice.watches:
        raise UserError(
            f"{type(sampler.batch_choice).__name__} measures gradients, and without its sampler eq.attach cannot show "
            "it any, so that sizes would never change: pass sampler=sampler to eq.attach"
        )
