"""Where all workers are in an epoch, each in a block of its own."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from ..batch.base import Batch
from ..core.context import Context
from ..core.errors import CheckpointError, UserError
from ..core.marks import mark_sequence
from ..order.base import Order
from .data_position import DataPosition
from .segment import ConstantBatchSegment, steps_of, uneven

_EARLY = 0.6  # of the steps of an epoch: a worker that needs no more of them takes single examples for the rest


class Taken(NamedTuple):
    """A point of an epoch: what each worker has taken of its part of it, and all of them since the run began."""

    taken: list[int]
    consumed: int
    largest: int = 0  # batch of any worker in the step that led here

    def state(self) -> dict[str, Any]:
        return self._asdict()


class Position(DataPosition):
    """Where all workers are in their blocks. Every worker computes the same one, so all agree where the epoch ends.

    A worker takes its batch size, but keeps one example for each step that the slowest worker still has to take: every
    example is visited once, and nobody runs dry before the end unless it has fewer examples than there are steps. Where
    one size for all meets blocks of unequal size, and for a rule that `spreads`, batches follow the blocks: every
    worker takes as many in each step as will do to end with the others.

    What was taken is a function of the steps since sizes last changed, so that a step costs the same for two workers
    and for a thousand. Without `lockstep` every worker counts its own block and its own epochs, whatever the others
    do.
    """

    owned: ClassVar[bool] = True

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
        super().__init__(context, blocks[context.rank], order, batch)
        self.drop_last = drop_last
        # Whose steps are counted here.
        self.counted = slice(None) if lockstep else slice(context.rank, context.rank + 1)
        self._listed: list[int] = []  # the batch sizes of all workers
        self._segment: ConstantBatchSegment | None = None  # of steps at the present sizes, once one is begun
        self.shared = shared  # does every worker know the sequences of all, so that none is lost with a worker?
        self.sequences: list[np.ndarray] = []  # these, by rank
        self.blocks = blocks
        if drop_last and self.steps_of_epoch() == 0:
            raise UserError("drop_last leaves no batch: every block is smaller than its batch size")
        self._tells = lockstep and context.rank == 0  # of blocks that end early, until it has
        self._tell_of_early_ends()
        self.before = 0  # in this epoch, by workers that a resume on another number has replaced
        self.positions: np.ndarray | None = (
            None  # in this worker's block; None while remaining examples of a resume are visited
        )
        self._next: np.ndarray | None = None  # what the next rank visits in this epoch, if this worker can tell
        self._marked: np.ndarray | None = None  # the sequence of which `_marks` are
        self._marks = 0, 0
        self._replay: list[Taken] = []  # batches to take as they were drawn before a checkpoint
        self._epoch: int | None = 0  # whose order the sequence has; None: it is not known any more
        self.begin(0)

    def begin(self, epoch: int) -> None:
        self.positions = self.order.epoch(epoch)
        assert len(self.positions) == len(self.block)
        self.sequence = self.block[self.positions]
        self._next, self._epoch = None, epoch
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
    def taken(self) -> np.ndarray:
        """By each worker of its part of this epoch."""
        taken: np.ndarray = self._taken.copy()
        if self._segment is not None:
            taken[self.counted] += self._segment.taken()
        return taken

    @property
    def left(self) -> int:
        return self._total_left - (self._segment.total(self._segment.done) if self._segment is not None else 0)

    @property
    def size(self) -> int:
        return self.before + self.total

    def confirm(self, at: Taken | None = None) -> None: ...

    def order_marks(self) -> tuple[int, int]:
        if len(self.blocks) == 1 or self.counted != slice(None):  # without lockstep each is in an epoch of its own
            return 0, 0
        if self._marked is not self.sequence:
            following = self._sequence_of_next()
            self._marked = self.sequence
            self._marks = mark_sequence(self.sequence), 0 if following is None else mark_sequence(following)
        return self._marks

    def _sequence_of_next(self) -> np.ndarray | None:
        """What the next rank visits, from its block and the order, without asking it."""
        if self._next is not None or self.positions is None or not self.order.pure or self._epoch is None:
            return self._next
        context, rank = self.context, (self.context.rank + 1) % len(self.blocks)
        block = self.blocks[rank]
        worker = dataclasses.replace(context.worker, rank=rank, examples=len(block))
        following: np.ndarray = block[self.order.bind(dataclasses.replace(context, worker=worker)).epoch(self._epoch)]
        return following

    def counts(self, samples: int) -> dict[str, dict[str, int]]:
        return {}

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
                self._tell_of_early_ends()
            self._listed = sizes
        if self._segment is None:
            left = (self.lengths - self._taken)[self.counted]
            whose, size = 0 if len(left) == 1 else self.context.rank, np.array(sizes)[self.counted]
            # By the whole blocks: it must be the same after a resume.
            spread = self.batch.spreads or uneven(self.lengths[self.counted], size)
            self._segment = ConstantBatchSegment(left, size, whose, self.drop_last, spread)
        return self._segment

    def _tell_of_early_ends(self) -> None:
        if self._tells:
            batch = self.batch
            told = warn_of_early_ends([len(b) for b in self.blocks], batch.sizes(), batch.spreads, self.drop_last)
            self._tells = not told

    def steps_of_epoch(self) -> int:
        lengths = np.array([len(b) for b in self.blocks])[self.counted]
        return steps_of(lengths, np.array(self.batch.sizes())[self.counted], self.drop_last)

    @property
    def steps_left(self) -> int:
        if self._replay:
            rest = self.lengths - np.array(self._replay[-1].taken)
            sizes = np.array(self.batch.sizes())
            return len(self._replay) + steps_of(rest[self.counted], sizes[self.counted], self.drop_last)
        segment = self._going()
        return segment.steps - segment.done

    def take(self) -> tuple[np.ndarray, np.ndarray | None]:
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
            # Arrays that no step changes in place; as lists they would take milliseconds.
            "sequence": torch.from_numpy(self.sequence),
            "learned": self.positions is not None,
            "block": torch.from_numpy(self.block),
            "lengths": self.lengths.tolist(),
            "taken": self.taken.tolist(),
            "consumed": self.consumed,
            "before": self.before,
            "replay": [taken.state() for taken in self._replay],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        block = np.asarray(state["block"], dtype=np.int64)
        if not np.array_equal(block, self.block):
            raise CheckpointError("the checkpoint's partition differs from this one: the data or its options changed")
        refuse_impossible(state, self.context.rank, len(self.blocks))
        self.sequence = np.asarray(state["sequence"], dtype=np.int64)
        if self.shared:
            self.sequences = self._all_sequences(state["lengths"])
        self._set_progress(state["lengths"], state["taken"])
        self.context.clock.consumed, self.before = state["consumed"], state["before"]
        self._replay = [Taken(**row) for row in state["replay"]]
        self.positions, self._next, self._epoch = None, None, None
        if state["learned"]:
            by_index = np.argsort(block)
            self.positions = by_index[np.searchsorted(block, self.sequence, sorter=by_index)]
            assert np.array_equal(block[self.positions], self.sequence)

    def rest(self, at: Taken | None = None) -> dict[str, Any]:
        at = at or self.taken_now()
        return {"sequences": self.sequences, "taken": at.taken, "consumed": at.consumed, "before": self.before}

    def redistribute(self, states: list[dict[str, Any]]) -> None:
        for rank, state in enumerate(states):
            refuse_impossible(state, rank, len(states))
        sequences = [np.asarray(state["sequence"], dtype=np.int64) for state in states]
        taken = [state["taken"][rank] for rank, state in enumerate(states)]
        whole = {"consumed": states[0]["consumed"], "before": states[0]["before"]}
        self.deal({"sequences": sequences, "taken": taken, **whole})

    def deal(self, rest: dict[str, Any]) -> None:
        """The remaining examples of all are dealt out in turn."""
        sequences, taken = rest["sequences"], rest["taken"]
        left = [sequence[count:] for sequence, count in zip(sequences, taken, strict=True)]
        turns = np.concatenate([np.arange(len(part)) for part in left])
        remaining = np.concatenate(left)[np.argsort(turns, kind="stable")]
        size = len(self.blocks)
        parts = [remaining[rank::size] for rank in range(size)]
        self.sequence = parts[self.context.rank]
        self.sequences = parts if self.shared else []
        self._next = parts[(self.context.rank + 1) % size]
        self._set_progress([len(part) for part in parts], [0] * size)
        self.context.clock.consumed = rest["consumed"]
        self.before = rest["before"] + sum(taken)
        self.positions = None


def warn_of_early_ends(lengths: list[int], sizes: list[int], spreads: bool, drop_last: bool) -> bool:
    """Say which worker has taken its block long before the others, because sizes of its own do not follow the blocks.

    One size for all is made to follow them. True if there was something to say.
    """
    left, size = np.array(lengths), np.array(sizes)
    if spreads or uneven(left, size):
        return False
    steps = left // size if drop_last else -(-left // size)
    first, most = int(steps.argmin()), int(steps.max())
    if steps[first] >= _EARLY * most or sizes[first] == 1:
        return False
    shown = ",".join(map(str, sizes)) if len(sizes) <= 16 else "one number per worker"
    logging.getLogger("equipoise").warning(
        "worker %d has taken its %d examples after %d of %d steps, in batches of %d: %s. Give blocks in the proportion "
        "of the batches (partition.speeds = %s), or batches in that of the blocks (batch proportional; speeds = blocks "
        "of an adaptive rule)",
        first,
        lengths[first],
        steps[first],
        most,
        sizes[first],
        "drop_last ends the epoch there" if drop_last else "for the rest its batches are single examples",
        shown,
    )
    return True


def refuse_impossible(state: dict[str, Any], rank: int, workers: int) -> None:
    """A position that no worker can be in: it would train on other examples, or never end."""
    sequence, lengths = np.asarray(state["sequence"], dtype=np.int64), np.asarray(state["lengths"], dtype=np.int64)
    points = [np.asarray(row["taken"], dtype=np.int64) for row in (state, *state["replay"])]
    possible = (
        len(lengths) == workers
        and all(point.shape == lengths.shape for point in points)
        and all((a <= b).all() for a, b in itertools.pairwise([0 * lengths, *points, lengths]))
        and len(sequence) == lengths[rank]
        and len(np.unique(sequence)) == len(sequence)
        and (not len(sequence) or sequence.min() >= 0)
    )
    if not possible:
        raise CheckpointError("the position in the data of this checkpoint is impossible: the file was changed")
