"""Partition, order and batch as one position in the data that can be saved, resumed and dealt out again."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import nn

from ..batch.base import Batch
from ..batch.fixed import Fixed
from ..context import Context
from ..data.source import Source
from ..errors import CheckpointError, UserError
from ..order.base import Order
from ..order.reshuffle import Reshuffle
from ..partition.base import Partition
from ..partition.iid import IID
from ..partition.share import shared_blocks


class Position:
    """Where all workers are in this epoch. Every worker computes the same one, so all agree where the epoch ends.

    A worker takes its batch size, but keeps one example for each step that the slowest worker still has to take: blocks
    of unequal size end together, every example is visited once, and nobody runs dry before the end.

    Without `lockstep` every worker counts its own block and its own epochs, whatever the others do.
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
        self._sizes = np.empty(0, dtype=np.int64)  # the batch sizes of those,
        self._listed: list[int] = []  # and the list they are from
        self.largest = 0  # of all batch sizes
        self._left: int | None = None  # steps to the end of this epoch, where they are known
        self.blocks = blocks
        self.block = blocks[context.rank]
        if drop_last and self._steps([len(b) for b in blocks]) == 0:
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
        # As arrays: every worker counts for all of them, and there may be a thousand.
        self.lengths, self.taken = np.array(lengths, dtype=np.int64), np.array(taken, dtype=np.int64)
        self._left = None

    @property
    def consumed(self) -> int:
        return self.context.consumed

    @consumed.setter
    def consumed(self, value: int) -> None:
        self.context.consumed = value

    @property
    def part_done(self) -> float:
        """The part of this epoch's examples that has been taken."""
        return (self.before + int(self.taken.sum())) / (self.before + int(self.lengths.sum()))

    def sizes(self) -> np.ndarray:
        """The batch sizes of those who are counted."""
        sizes = self.batch.sizes()
        if sizes is not self._listed:
            if sizes != self._listed:
                self._sizes, self._left = np.array(sizes, dtype=np.int64)[self.counted], None
                self.largest = max(sizes)
            self._listed = sizes
        return self._sizes

    def _steps(self, left: Sequence[int] | np.ndarray) -> int:
        sizes, left = self.sizes(), np.asarray(left)[self.counted]
        return int((left // sizes).min() if self.drop_last else (-(-left // sizes)).max())

    @property
    def steps_left(self) -> int:
        """Steps to the end of this epoch, at the present batch sizes."""
        self.sizes()
        if self._left is None:
            self._left = self._steps(self.lengths - self.taken)
        return self._left

    def take(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Indices of the next batch, and their places in this worker's block. Empty for a worker that ran dry."""
        steps = self.steps_left
        assert steps > 0, "the epoch is over"
        start = int(self.taken[self.context.rank])
        sizes, left = self.sizes(), (self.lengths - self.taken)[self.counted]
        kept = left if self.drop_last else np.maximum(left - (steps - 1), np.minimum(left, 1))
        count = np.minimum(sizes, kept)
        self.taken[self.counted] += count
        # Whoever has the most steps to take takes a full batch, so that one step less is left.
        self._left = steps - 1
        # Whoever is not counted is taken to go on alike, until a round tells.
        self.drawn = int(count.sum())
        self.consumed += self.drawn * len(self.blocks) // len(count)
        stop = int(self.taken[self.context.rank])
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
        from ..launch.current import current_comm

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
        return self.position.steps_left or self.position._steps([len(b) for b in self.position.blocks])

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
