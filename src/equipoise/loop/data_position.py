"""Where all workers are in an epoch: what the loop and the sampler ask, however examples are handed out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import numpy as np

from ..batch.base import Batch
from ..core.context import Context
from ..order.base import Order


class DataPoint(Protocol):
    """A point of an epoch, before or after a batch."""

    def state(self) -> dict[str, Any]:
        """The entries of `DataPosition.state_dict` that differ from batch to batch."""


class DataPosition(ABC):
    """Where all workers are in this epoch: `Position` in blocks, `QueuePosition` in one list. Saved and resumed."""

    owned: ClassVar[bool]  # is `block` this worker's own? Otherwise it only stands for what the worker may be given

    def __init__(self, context: Context, block: np.ndarray, order: Order, batch: Batch):
        self.context, self.block, self.order, self.batch = context, block, order, batch
        self.largest = 0  # batch of any worker at the present sizes
        self.drawn = 0  # by all workers in the last step

    @property
    def own_block(self) -> np.ndarray | None:
        """The examples that this worker alone is given, where there are such."""
        return self.block if self.owned else None

    @property
    def consumed(self) -> int:
        """Examples taken by all workers since the run began."""
        return self.context.clock.consumed

    @abstractmethod
    def begin(self, epoch: int) -> None:
        """Start an epoch."""

    @abstractmethod
    def take(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Indices of the next batch, and their places in this worker's block. Empty for a worker that ran dry."""

    @property
    @abstractmethod
    def steps_left(self) -> int:
        """Steps to the end of this epoch, at the present batch sizes."""

    @abstractmethod
    def steps_of_epoch(self) -> int:
        """Steps of a whole epoch, at the present batch sizes."""

    @property
    @abstractmethod
    def left(self) -> int:
        """Of this epoch's examples, by all workers."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The examples of this epoch, those before a resume on another number of workers included."""

    @property
    def part_done(self) -> float:
        """The part of this epoch's examples that has been taken."""
        return (self.size - self.left) / self.size

    @abstractmethod
    def confirm(self, at: Any = None) -> None:
        """All have agreed on what was taken so far. at: an earlier point, where a loader is ahead."""

    @abstractmethod
    def counts(self, samples: int) -> dict[str, dict[str, int]]:
        """What the result says of so many examples on which all have agreed."""

    @abstractmethod
    def taken_now(self) -> DataPoint:
        """Where the batch that was taken last has led."""

    @abstractmethod
    def order_marks(self) -> tuple[int, int]:
        """Of the examples that this worker visits in this epoch, in their order, and of those that by its own account
        the next rank visits; 0 where it cannot tell.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    @abstractmethod
    def rest(self, at: Any = None) -> dict[str, Any]:
        """What is left of this epoch, for all workers: for `deal`. at: an earlier point, where a loader is ahead."""

    @abstractmethod
    def deal(self, rest: dict[str, Any]) -> None:
        """Go on with an epoch that other workers began: what they have left is handed out, each example once."""

    @abstractmethod
    def redistribute(self, states: list[dict[str, Any]]) -> None:
        """`deal`, from what other workers have saved."""


def converted(position: dict[str, Any], kind: type, convert: Callable[[Any], Any]) -> dict[str, Any]:
    """What is left of an epoch, with each of its lists of arrays converted."""
    lists = {key: value for key, value in position.items() if isinstance(value, list)}
    rows = {key: [convert(row) if isinstance(row, kind) else row for row in value] for key, value in lists.items()}
    return position | rows
