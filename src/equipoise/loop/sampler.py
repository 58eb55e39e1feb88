"""Partition, order and batch as one position in the data that can be saved, resumed and dealt out again."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import nn

from ..batch.base import Batch
from ..batch.fixed import Fixed
from ..core.context import Context
from ..core.errors import CheckpointError, UserError
from ..data.source import Source
from ..order.base import Order
from ..order.reshuffle import Reshuffle
from ..partition.base import Partition
from ..partition.iid import IID
from .blocks import shared_blocks
from .segment import Stretch, steps_of


class Position:
    """Where all workers are in this epoch. Every worker computes the same one, so all agree where the epoch ends.

    A worker takes its batch size, but keeps one example for each step that the slowest worker still has to take: blocks
    of unequal size end together, every example is visited once, and nobody runs dry before the end. Of a rule that
    `spreads`, it takes as many as will do to end with the others.

    What was taken is a function of the steps since sizes last changed, so that a step costs the same for two workers and for a
    thousand. Without `lockstep` every worker counts its own block and its own epochs, whatever the others do.
    """

    def __init__(
        self,
        context: Context,
        blocks: list[np.ndarray],
        order: Order,
        batch: Batch,
        drop_last: bool = False,
        lockstep: bool = True,
    ):
        self.context, self.order, self.batch, self.drop_last = context, order, batch, drop_last
        # Whose steps are counted here.
        self.counted = slice(None) if lockstep else slice(context.rank, context.rank + 1)
        self._listed: list[int] = []  # the batch sizes of all workers
        self.largest = 0  # of them
        self._stretch: Stretch | None = None  # of steps at the present sizes, once one is begun
        self.blocks = blocks
        self.block = blocks[context.rank]
        if drop_last and self.steps_of_epoch() == 0:
            raise UserError("drop_last leaves no batch: a block is smaller than its batch size")
        self.consumed = 0  # by all workers since the run began
        self.before = 0  # in this epoch, by workers that a resume on another number has replaced
        self.drawn = 0  # by all workers in the last step
        self.positions: np.ndarray | None = None  # in this worker's block; None while left-overs of a resume are dealt
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Start an epoch."""
        self.positions = self.order.epoch(epoch)
        assert len(self.positions) == len(self.block)
        self.sequence = self.block[self.positions]
        self._lie([len(b) for b in self.blocks], [0] * len(self.blocks))
        self.before = 0

    def _lie(self, lengths: list[int], taken: list[int]) -> None:
        """Each worker's part of this epoch, and how much of it has been taken."""
        self.lengths, self._taken = np.array(lengths, dtype=np.int64), np.array(taken, dtype=np.int64)
        self.total = int(self.lengths.sum())
        self._end_stretch()

    def _end_stretch(self) -> None:
        self._stretch = None
        self._total_left = self.total - int(self._taken.sum())

    @property
    def consumed(self) -> int:
        return self.context.consumed

    @consumed.setter
    def consumed(self, value: int) -> None:
        self.context.consumed = value

    @property
    def taken(self) -> np.ndarray:
        """By each worker of its part of this epoch."""
        taken = self._taken.copy()
        if self._stretch is not None:
            taken[self.counted] += self._stretch.taken()
        return taken

    @property
    def left(self) -> int:
        """Of this epoch's examples, by all workers."""
        return self._total_left - (self._stretch.total(self._stretch.done) if self._stretch is not None else 0)

    @property
    def part_done(self) -> float:
        """The part of this epoch's examples that has been taken."""
        return (self.before + self.total - self.left) / (self.before + self.total)

    def _going(self) -> Stretch:
        """The stretch of steps at the present batch sizes."""
        sizes = self.batch.sizes()
        if sizes is not self._listed:
            if sizes != self._listed:
                self._taken = self.taken
                self._end_stretch()
                self.largest = max(sizes)
            self._listed = sizes
        if self._stretch is None:
            left = (self.lengths - self._taken)[self.counted]
            whose = 0 if len(left) == 1 else self.context.rank
            self._stretch = Stretch(left, np.array(sizes)[self.counted], whose, self.drop_last, self.batch.spreads)
        return self._stretch

    def steps_of_epoch(self) -> int:
        """Steps of a whole epoch, at the present batch sizes."""
        lengths = np.array([len(b) for b in self.blocks])[self.counted]
        return steps_of(lengths, np.array(self.batch.sizes())[self.counted], self.drop_last)

    @property
    def steps_left(self) -> int:
        """Steps to the end of this epoch, at the present batch sizes."""
        stretch = self._going()
        return stretch.steps - stretch.done

    def take(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Indices of the next batch, and their places in this worker's block. Empty for a worker that ran dry."""
        stretch = self._going()
        assert stretch.done < stretch.steps, "the epoch is over"
        before = int(self._taken[self.context.rank])
        start, self.drawn = before + stretch.mine(stretch.done), -stretch.total(stretch.done)
        stretch.done += 1
        stop = before + stretch.mine(stretch.done)
        self.drawn += stretch.total(stretch.done)
        # Whoever is not counted is taken to go on alike, until a round tells.
        self.consumed += self.drawn * (1 if self.counted == slice(None) else len(self.blocks))
        places = self.positions[start:stop] if self.positions is not None else None
        return self.sequence[start:stop], places

    def state_dict(self) -> dict[str, Any]:
        return {
            "sequence": self.sequence.tolist(),
            "learned": self.positions is not None,
            "block": self.block.tolist(),
            "lengths": self.lengths.tolist(),
            "taken": self.taken.tolist(),
            "consumed": self.consumed,
            "before": self.before,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["block"] != self.block.tolist():
            raise CheckpointError("the checkpoint's partition differs from this one: the data or its options changed")
        self.sequence = np.asarray(state["sequence"], dtype=np.int64)
        self._lie(state["lengths"], state["taken"])
        self.consumed, self.before = state["consumed"], state["before"]
        self.positions = None
        if state["learned"]:
            place = {index: i for i, index in enumerate(state["block"])}
            self.positions = np.asarray([place[index] for index in state["sequence"]], dtype=np.int64)

    def deal_left_overs(self, states: list[dict[str, Any]]) -> None:
        """Go on with an epoch that other workers began: what they left is dealt out in turn, each example once."""
        left = [np.asarray(s["sequence"], dtype=np.int64)[s["taken"][r] :] for r, s in enumerate(states)]
        longest = max(len(part) for part in left)
        deck = [part[i] for i in range(longest) for part in left if i < len(part)]
        size = len(self.blocks)
        self.sequence = np.asarray(deck[self.context.rank :: size], dtype=np.int64)
        self._lie([len(deck[rank::size]) for rank in range(size)], [0] * size)
        self.consumed = states[0]["consumed"]
        self.before = states[0]["before"] + sum(states[0]["taken"])
        self.positions = None


class Sampler:
    """`partition`, `order` and `batch` for a user's own `DataLoader(batch_sampler=...)`.

    Every worker yields the same number of batches per epoch, so that collectives in the loop match. A worker whose
    block is smaller than the number of steps repeats examples of its own instead of leaving the others waiting.
    Iterating starts at the saved position, or at the next epoch once one is finished.

    An order that learns from gradients sees them through `with sampler.watching(model):` around forward and backward.

    With `DataLoader(num_workers=k)` batches are drawn ahead of time: pass the number that your loop has finished since
    it began to iterate to `state_dict(finished)`.
    """

    def __init__(
        self,
        data: Any,
        *,
        partition: Partition | None = None,
        order: Order | None = None,
        batch: Batch | int = 32,
        seed: int = 0,
        drop_last: bool = False,
    ):
        from ..comm.current import current_comm

        self.comm = current_comm()
        source = data if isinstance(data, Source) else Source(data)
        blocks = shared_blocks(partition or IID(), source.view(), self.comm, seed)
        mine = blocks[self.comm.rank]
        context = Context(self.comm, seed=seed, examples=len(mine), share=len(mine) / len(source), whole=len(source))
        context.shares = [len(block) / len(source) for block in blocks]
        self.rule = batch if isinstance(batch, Batch) else Fixed(batch)
        self.batch = self.rule.bind(context)
        self.order = (order or Reshuffle()).bind(context)
        self.position = Position(context, blocks, self.order, self.batch, drop_last)
        self.epoch = 0
        self._drawn: list[int] = []  # sizes of the batches since the last optimizer step
        self._starts: list[list[int]] = []  # positions before each batch of this epoch, for state_dict(finished)
        self._unseen: deque[np.ndarray | None] = deque()  # places of batches that were drawn and not watched yet

    def follow(self, context: Context) -> None:
        """Let the batch rule see what happens in this context from now on."""
        own, state = self.position.context, self.batch.state_dict()
        context.examples, context.whole, context.consumed = own.examples, own.whole, own.consumed
        self.position.context = context
        self.batch = self.position.batch = self.rule.bind(context)
        self.batch.load_state_dict(state)

    def stepping(self, most: int) -> int:
        """Examples since the last optimizer step, in at most so many batches."""
        count, examples = len(self._drawn), sum(self._drawn)
        if count > most:
            raise UserError(
                f"{count} batches were drawn for one optimizer step: pass num_workers=0 to the DataLoader, which must not draw "
                f"ahead, or accumulate={count} to attach if the loop accumulates their gradients"
            )
        self._drawn.clear()
        return examples

    @contextlib.contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Around forward and backward of one batch, so that the order learns from its gradients.

        Once per batch, in the order in which they were drawn; an order that learns nothing is not disturbed by it. The loss
        must be a mean over the batch. Gradients that were accumulated before are left alone.
        """
        if not self.order.watches:
            yield
            return
        if not self._unseen:
            raise UserError(
                "watching() without a batch of this sampler: use it inside the loop over the loader, once per batch"
            )
        places = self._unseen.popleft()
        watcher = self.order.watcher
        watcher.forget()
        # A worker that ran dry was given one of its examples again: it counts for nothing.
        with watcher.watching(model, 1 if places is None or not len(places) else len(places)):
            yield
        if places is not None:
            self.order.observe(places, watcher.view() if len(places) else None)

    def __len__(self) -> int:
        return self.position.steps_left or self.position.steps_of_epoch()

    def __iter__(self) -> Iterator[list[int]]:
        if self.position.steps_left == 0:
            self.epoch += 1
            self.position.begin(self.epoch)
        self._starts = [self.position.taken.tolist()]
        self._unseen.clear()
        self._drawn.clear()
        while self.position.steps_left:
            indices, places = self.position.take()
            self._starts.append(self.position.taken.tolist())
            self._unseen.append(places)
            self._drawn.append(len(indices))
            yield indices.tolist() or self.position.block[:1].tolist()

    def state_dict(self, finished: int | None = None) -> dict[str, Any]:
        """Everything needed to go on. `finished`: batches of this iteration that the loop has completed."""
        position = self.position.state_dict()
        if finished is not None:
            starts = self._starts or [self.position.taken.tolist()]
            if not 0 <= finished < len(starts):
                raise UserError(f"finished={finished} but only {len(starts) - 1} batches were drawn in this iteration")
            position["taken"] = list(starts[finished])
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
        self._starts = []
