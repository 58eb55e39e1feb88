"""Where all workers are in an epoch: a position in the data that can be saved, resumed and redistributed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from ..batch.base import Batch
from ..core.context import Context
from ..core.errors import CheckpointError, UserError
from ..order.base import Order
from .segment import ConstantBatchSegment, steps_of


class Taken(NamedTuple):
    """A point of an epoch: what each worker has taken of its part of it, and all of them since the run began."""

    taken: list[int]
    consumed: int
    largest: int = 0  # batch of any worker in the step that led here

    def state(self) -> dict[str, Any]:
        return self._asdict()


class Position:
    """Where all workers are in this epoch. Every worker computes the same one, so all agree where the epoch ends.

    A worker takes its batch size, but keeps one example for each step that the slowest worker still has to take: blocks
    of unequal size end together, every example is visited once, and nobody runs dry before the end. Of a rule that
    `spreads`, it takes as many as will do to end with the others.

    What was taken is a function of the steps since sizes last changed, so that a step costs the same for two workers
    and for a thousand. Without `lockstep` every worker counts its own block and its own epochs, whatever the others
    do.
    """

    def __init__(
        self,
        context: Context,
        blocks: list[np.ndarray],
        order: Order,
        batch: Batch,
        drop_last: bool = False,
        lockstep: bool = True,
        shared: bool = False,
    ):
        self.context, self.order, self.batch, self.drop_last = context, order, batch, drop_last
        # Whose steps are counted here.
        self.counted = slice(None) if lockstep else slice(context.rank, context.rank + 1)
        self._listed: list[int] = []  # the batch sizes of all workers
        self.largest = 0  # of them
        self._segment: ConstantBatchSegment | None = None  # of steps at the present sizes, once one is begun
        self.shared = shared  # does every worker know the sequences of all, so that none is lost with a worker?
        self.sequences: list[np.ndarray] = []  # these, by rank
        self.blocks = blocks
        self.block = blocks[context.rank]
        if drop_last and self.steps_of_epoch() == 0:
            raise UserError("drop_last leaves no batch: a block is smaller than its batch size")
        self.before = 0  # in this epoch, by workers that a resume on another number has replaced
        self.drawn = 0  # by all workers in the last step
        self.positions: np.ndarray | None = (
            None  # in this worker's block; None while remaining examples of a resume are visited
        )
        self._replay: list[Taken] = []  # batches to take as they were drawn before a checkpoint
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Start an epoch."""
        self.positions = self.order.epoch(epoch)
        assert len(self.positions) == len(self.block)
        self.sequence = self.block[self.positions]
        if self.shared:
            self.sequences = self._all_sequences([len(b) for b in self.blocks])
        self._set_progress([len(b) for b in self.blocks], [0] * len(self.blocks))
        self.before = 0

    def _all_sequences(self, sizes: list[int]) -> list[np.ndarray]:
        """Of all workers, in this epoch."""
        own = torch.zeros(max(sizes), dtype=torch.int64)
        own[: len(self.sequence)] = torch.from_numpy(self.sequence)
        with self.context.comm.uncounted():
            rows = self.context.comm.gather(own)
        return [row[:size].numpy() for row, size in zip(rows, sizes, strict=True)]

    def _set_progress(self, lengths: list[int], taken: list[int]) -> None:
        """Each worker's part of this epoch, and how much of it has been taken."""
        self.lengths, self._taken = np.array(lengths, dtype=np.int64), np.array(taken, dtype=np.int64)
        self.total = int(self.lengths.sum())
        self._end_segment()

    def _end_segment(self) -> None:
        self._segment = None
        self._total_left = self.total - int(self._taken.sum())

    @property
    def consumed(self) -> int:
        """Examples taken by all workers since the run began."""
        return self.context.clock.consumed

    @property
    def taken(self) -> np.ndarray:
        """By each worker of its part of this epoch."""
        taken: np.ndarray = self._taken.copy()
        if self._segment is not None:
            taken[self.counted] += self._segment.taken()
        return taken

    @property
    def left(self) -> int:
        """Of this epoch's examples, by all workers."""
        return self._total_left - (self._segment.total(self._segment.done) if self._segment is not None else 0)

    @property
    def part_done(self) -> float:
        """The part of this epoch's examples that has been taken."""
        return (self.before + self.total - self.left) / (self.before + self.total)

    def taken_now(self) -> Taken:
        return Taken(self.taken.tolist(), self.consumed, self.largest)

    def _going(self) -> ConstantBatchSegment:
        """The segment of steps at the present batch sizes."""
        sizes = self.batch.sizes()
        if sizes is not self._listed:
            if sizes != self._listed:
                self._taken = self.taken
                self._end_segment()
                self.largest = max(sizes)
            self._listed = sizes
        if self._segment is None:
            left = (self.lengths - self._taken)[self.counted]
            whose = 0 if len(left) == 1 else self.context.rank
            self._segment = ConstantBatchSegment(
                left, np.array(sizes)[self.counted], whose, self.drop_last, self.batch.spreads
            )
        return self._segment

    def steps_of_epoch(self) -> int:
        """Steps of a whole epoch, at the present batch sizes."""
        lengths = np.array([len(b) for b in self.blocks])[self.counted]
        return steps_of(lengths, np.array(self.batch.sizes())[self.counted], self.drop_last)

    @property
    def steps_left(self) -> int:
        """Steps to the end of this epoch, at the present batch sizes."""
        if self._replay:
            rest = self.lengths - np.array(self._replay[-1].taken)
            sizes = np.array(self.batch.sizes())
            return len(self._replay) + steps_of(rest[self.counted], sizes[self.counted], self.drop_last)
        segment = self._going()
        return segment.steps - segment.done

    def take(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Indices of the next batch, and their places in this worker's block. Empty for a worker that ran dry."""
        if self._replay:
            return self._take_again(self._replay.pop(0))
        segment = self._going()
        assert segment.done < segment.steps, "the epoch is over"
        before = int(self._taken[self.context.rank])
        start, self.drawn = before + segment.mine(segment.done), -segment.total(segment.done)
        segment.done += 1
        stop = before + segment.mine(segment.done)
        self.drawn += segment.total(segment.done)
        # Whoever is not counted is taken to go on alike, until a round tells.
        self.context.clock.consumed += self.drawn * (1 if self.counted == slice(None) else len(self.blocks))
        places = self.positions[start:stop] if self.positions is not None else None
        return self.sequence[start:stop], places

    def _take_again(self, after: Taken) -> tuple[np.ndarray, np.ndarray | None]:
        """A batch that was drawn before a checkpoint and not used, at the size that it had then."""
        before = self._taken[self.context.rank]
        self.drawn = int((np.array(after.taken) - self._taken)[self.counted].sum())
        self._taken = np.array(after.taken, dtype=np.int64)
        self._end_segment()
        self._listed = []  # the sizes of the next batch are looked up anew
        self.context.clock.consumed, self.largest = after.consumed, after.largest
        part = slice(int(before), after.taken[self.context.rank])
        return self.sequence[part], self.positions[part] if self.positions is not None else None

    def state_dict(self) -> dict[str, Any]:
        return {
            "sequence": self.sequence.tolist(),
            "learned": self.positions is not None,
            "block": self.block.tolist(),
            "lengths": self.lengths.tolist(),
            "taken": self.taken.tolist(),
            "consumed": self.consumed,
            "before": self.before,
            "replay": [taken.state() for taken in self._replay],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["block"] != self.block.tolist():
            raise CheckpointError("the checkpoint's partition differs from this one: the data or its options changed")
        self.sequence = np.asarray(state["sequence"], dtype=np.int64)
        if self.shared:
            self.sequences = self._all_sequences(state["lengths"])
        self._set_progress(state["lengths"], state["taken"])
        self.context.clock.consumed, self.before = state["consumed"], state["before"]
        self._replay = [Taken(**row) for row in state["replay"]]
        self.positions = None
        if state["learned"]:
            place = {index: i for i, index in enumerate(state["block"])}
            self.positions = np.asarray([place[index] for index in state["sequence"]], dtype=np.int64)

    def rest(self, at: Taken | None = None) -> dict[str, Any]:
        """What is left of this epoch, for all workers: for `deal`. `at`: an earlier point of it."""
        at = at or self.taken_now()
        return {"sequences": self.sequences, "taken": at.taken, "consumed": at.consumed, "before": self.before}

    def redistribute(self, states: list[dict[str, Any]]) -> None:
        """Go on with an epoch of which other workers have saved these states."""
        sequences = [np.asarray(state["sequence"], dtype=np.int64) for state in states]
        taken = [state["taken"][rank] for rank, state in enumerate(states)]
        self.deal(sequences, taken, states[0]["consumed"], states[0]["before"])

    def deal(self, sequences: list[np.ndarray], taken: list[int], consumed: int, before: int) -> None:
        """Go on with an epoch that other workers began: the remaining examples are redistributed in turn, each once."""
        left = [sequence[count:] for sequence, count in zip(sequences, taken, strict=True)]
        turns = np.concatenate([np.arange(len(part)) for part in left])
        remaining = np.concatenate(left)[np.argsort(turns, kind="stable")]
        size = len(self.blocks)
        parts = [remaining[rank::size] for rank in range(size)]
        self.sequence = parts[self.context.rank]
        self.sequences = parts if self.shared else []
        self._set_progress([len(part) for part in parts], [0] * size)
        self.context.clock.consumed = consumed
        self.before = before + sum(taken)
        self.positions = None
