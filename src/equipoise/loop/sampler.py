"""`eq.Sampler`: partition, order and batch for a user's own `DataLoader`."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from torch import nn
from torch.utils.data import BatchSampler

from ..batch.base import Batch
from ..comm.base import Comm
from ..comm.current import current_comm
from ..config.defaults import chosen_batch, chosen_order, chosen_partition
from ..config.fit import check_claims
from ..core.context import Context, describe
from ..core.errors import UserError
from ..core.finite import first_not_finite
from ..data.source import Source
from ..order.base import Order
from ..partition.base import Partition
from .blocks import shared_blocks, speeds_are_measured, waits_for_model, with_speeds
from .data_position import DataPoint, DataPosition
from .islands import check_data, levels_of, part_of_batch
from .positions import position_of, sizes_of
from .speeds import measure_rates
from .wrappers import refuse_second_division

_last_drawn: WeakKeyDictionary[Comm, weakref.ref[Sampler]] = WeakKeyDictionary()  # whose batches a worker trains on


class Drawn(NamedTuple):
    """A batch that the loader has drawn."""

    size: int
    places: np.ndarray | None  # in this worker's block, for an order that learns
    largest: int  # batch of any worker


class Sampler(BatchSampler):
    """`partition`, `order` and `batch` for a user's own `DataLoader(batch_sampler=...)`.

    Every worker yields the same number of batches per epoch, so that collectives in the loop match. A worker with fewer
    examples than there are steps begins its block again instead of leaving the others waiting. Under `eq.attach` such
    a batch counts for nothing, as in `eq.train`: no gradient, no optimizer step, no BatchNorm statistics.
    Iterating starts at the saved position, or at the next epoch once one is finished.

    step: one training step without communication, on the same number of examples on all workers, for a partition
        with `speeds="measured"`. All workers call it before the data is divided.

    group: as in `eq.attach`. mesh: as there; the data, its order and batch sizes are of islands, and each rank of an
        island is given its part of the island's batch. Parts are equally long: where a batch cannot be divided, some
        of its examples are given twice.

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
        mesh: Any = None,
    ):
        levels = None if mesh is None else levels_of(mesh)
        self.comm = current_comm(group) if levels is None else levels.between
        self.inside = None if levels is None else levels.inside  # of the island, where several ranks share a batch
        self.source = data if isinstance(data, Source) else Source(data)
        self.order_choice, self.batch_choice = chosen_order(order), chosen_batch(batch)
        self.partition = chosen_partition(partition)
        self.drop_last = drop_last
        check_claims(self.partition, self.order_choice, drop_last)
        if waits_for_model(self.partition):
            raise UserError(
                "features = 'model' needs eq.train, which knows the model: pass eq.features.penultimate(model) instead"
            )
        if self.inside is not None:
            check_data(self.order_choice, self.partition)
        self.seed, self._step = seed, step
        self._divide()
        self.epoch = 0
        self._running = 0  # the epoch that the loop iterates over
        self.guard: Callable[[Callable[[], None]], None] = _call  # around what all workers do, where one may be lost
        self.finished = 0  # batches of this iteration that optimizer steps have used
        self._position: DataPosition | None = None
        self._deferred = False  # does the step, and not `watching`, hand gradients to the order?
        self._queue: deque[Drawn] = deque()  # drawn, and not yet used by an optimizer step
        self._since_step = 0  # batches drawn since the last optimizer step
        self._started = False  # has an optimizer step used a batch of this iteration?
        self._starts: list[DataPoint] = []  # before each batch of this iteration, and after the last
        self._unwatched: deque[np.ndarray | None] = deque()  # places of batches that were drawn and not watched yet
        self._watched = 0  # batches of this iteration that were watched
        self._indices: np.ndarray | None = None  # of the batch that was drawn last
        self._restore_rng: Callable[[], None] | None = None

    def _divide(self) -> None:
        """Divide the data among the workers."""
        self.blocks = shared_blocks(self._divided_by_speed(), self.source.view(), self.comm, self.seed)
        sizes = sizes_of(self.partition, self.batch_choice, self.blocks)
        self.worker = describe(self.comm, seed=self.seed, sizes=sizes)

    def _divided_by_speed(self) -> Partition:
        if not speeds_are_measured(self.partition):
            return self.partition
        if self._step is None:
            raise UserError("speeds='measured' needs a step to measure: pass step=, one training step, to eq.Sampler")
        rates = measure_rates(self._step, 1.0, self.comm)
        if self.inside is not None:
            rates = self.inside.gather_objects(rates)[0]  # ranks of an island have measured it at the same time
        chosen: Partition = with_speeds(self.partition, rates)
        return chosen

    def reform(self, comm: Comm) -> None:
        """Divide the data among the workers of another generation. What was drawn and not used is given up."""
        self.comm, self._position = comm, None
        self._divide()
        self._queue.clear()
        self._unwatched.clear()
        self._starts, self.finished, self._since_step, self._started = [], 0, 0, False

    # -- binding -------------------------------------------------------------------------------------------------------
    def bind(self, context: Context, *, lockstep: bool = True, deferred: bool = True, shared: bool = False) -> None:
        """Let order and batch rule use this context from now on; what they have learned so far is kept."""
        state = self.state_dict() if self._position is not None else None
        # The streams of order and batch rule follow from the sampler's own seed.
        context = dataclasses.replace(context, worker=dataclasses.replace(context.worker, seed=self.worker.seed))
        self._position = position_of(
            self.partition,
            context,
            self.blocks,
            self.order_choice,
            self.batch_choice,
            drop_last=self.drop_last,
            lockstep=lockstep,
            shared=shared,
        )
        self._deferred = deferred
        if state is not None:
            self.load_state_dict(state)

    @property
    def position(self) -> DataPosition:
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
        """The numbers of the epochs that are left of `count`: after a resume, from the one in progress on.

        A worker that joins a run in its first iteration goes on with the next epoch of the others.
        """
        number = self.epoch + (self.position.steps_left == 0)
        while number < count:
            yield number
            number = max(number + 1, self.epoch + (self.position.steps_left == 0))

    def continue_with(self, restore_rng: Callable[[], None]) -> None:
        """Put the random generators back when the epoch in progress goes on.

        A DataLoader draws a random number whenever it makes an iterator.
        """
        self._restore_rng = restore_rng

    def __len__(self) -> int:
        return self.position.steps_left or self.position.steps_of_epoch()

    def __iter__(self) -> Iterator[list[int]]:
        if self.comm.size > 1:
            refuse_second_division()
        restore, self._restore_rng = self._restore_rng, None
        if self.position.steps_left == 0:
            self._running = self.epoch + 1
            self.guard(self._begin_epoch)
        elif restore is not None and self.position.part_done > 0:
            restore()
        self._running = self.epoch
        self._starts, self.finished = [self.position.taken_now()], 0
        self._unwatched.clear()
        self._queue.clear()
        self._since_step, self._started, self._watched = 0, False, 0
        _last_drawn[self.comm] = weakref.ref(self)
        while self.position.steps_left or self.epoch < self._running:
            if not self.position.steps_left:  # workers have returned to the end of the epoch before
                self.guard(self._begin_epoch)
                continue
            self.guard(self._draw)
            if self._indices is not None:
                yield part_of_batch(self._indices.tolist() or self._again(), self.inside)
        if self.order.learning and not self._watched:
            logging.getLogger("equipoise").warning(self._unwatched_words())

    def _draw(self) -> None:
        """The next batch; none where workers have returned to the end of an epoch meanwhile."""
        position, self._indices = self.position, None
        if not position.steps_left:
            return
        if not self._starts:
            self._starts = [position.taken_now()]
        self._indices, places = position.take()
        self._starts.append(position.taken_now())
        self._unwatched.append(places)
        self._queue.append(Drawn(len(self._indices), places, position.largest))
        self._since_step += 1

    def _unwatched_words(self) -> str:
        return (
            f"{type(self.order).__name__} learns from gradients and sees none: put `with sampler.watching(model):` "
            "around forward and backward"
        )

    def _again(self) -> list[int]:
        """Examples that this worker has had, for a step in which it has none left: its block begins again.

        A full batch, as a BatchNorm cannot use a single example.
        """
        position = self.position
        block, size = position.block, position.batch.sizes()[self.comm.rank]
        first = position.steps_left * size  # another part in each step, the same after a resume
        return [int(block[(first + i) % len(block)]) for i in range(min(size, len(block)))]

    @property
    def runs_dry(self) -> bool:
        """Has this worker fewer examples than there are steps in an epoch?"""
        return len(self.position.block) < self.position.steps_of_epoch()

    def _begin_epoch(self) -> None:
        self.position.begin(self.epoch + 1)
        self.epoch += 1

    def taken_by_steps(self) -> DataPoint:
        """Where the optimizer steps of this iteration have come to; the loader may be ahead of them."""
        return self._starts[self.finished] if self._starts else self.position.taken_now()

    @property
    def drawn(self) -> int:
        """Batches that the loader has drawn and no step has used yet."""
        return len(self._queue)

    def alone(self, accumulate: int) -> bool:
        """Has a batch of the optimizer step in progress a single example?"""
        return self.inside is None and 1 in [drawn.size for drawn in itertools.islice(self._queue, accumulate)]

    def own_batches(self, accumulate: int) -> tuple[int, int, int]:
        """Batches of the step in progress: those of examples that are not given again, all that are drawn, and all."""
        drawn = [drawn.size > 0 for drawn in itertools.islice(self._queue, accumulate)]
        return sum(drawn), len(drawn), min(accumulate, len(self._queue) + self.position.steps_left)

    def give_back(self) -> None:
        """What the loader has drawn and no step has used is drawn again, by a loader that begins anew."""
        if self._queue:
            state = self.state_dict(self.finished)
            self._queue.clear()
            self._unwatched.clear()
            self.load_state_dict(state)

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
        if self.order.learning and self._watched < self.finished:
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
        if not order.learning:
            yield
            return
        if not self._unwatched:
            raise UserError(
                "watching() without a batch of this sampler: use it inside the loop over the loader, once per batch"
            )
        places = self._unwatched.popleft()
        self._watched += 1
        if places is None:  # the rest of an epoch that was redistributed: nothing is learned from it
            yield
            return
        watcher = order.watcher
        watcher.forget()
        if not len(places):  # examples that were given again count for nothing
            yield
            if not self._deferred:
                order.observe(places, None)
            return
        with watcher.watching(model, len(places)):
            yield
        if not self._deferred:
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


def _call(function: Callable[[], None]) -> None:
    function()
