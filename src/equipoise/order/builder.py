"""The order of an epoch, and which epochs are learned from. Shared by all balanced orders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from ..core.context import Context
from ..signal.base import GradientView
from .reordering import Units


class Builder(ABC):
    """Builds the next epoch's order. Final here: epochs, and which are learned.

    Gradients change slowly. So one epoch of `every` may be learned from; the others cost nothing.
    """

    def __init__(self, context: Context, group: int, every: int):
        self.context, self.every = context, every
        self.units = Units(context.worker.examples, group, context.worker.rng(1, 0))
        self.number = 0  # of the epoch
        self.since = 0  # epochs since one was learned from; 0: this one is

    @property
    def learning(self) -> bool:
        """Is this epoch learned from?"""
        return self.since == 0

    def epoch(self, number: int) -> np.ndarray:
        """Positions in the order of epoch `number`. A new number ends the epoch before."""
        if number != self.number:
            if self.learning:
                self.finish()
                self.units.next_epoch()
            else:
                self.next_between()
            self.since = (self.since + 1) % self.every
            self.number = number
            if self.learning:
                self.begin()
        return self.units.positions()

    def state(self) -> dict[str, Any]:
        return {"number": self.number, "since": self.since, "units": self.units.state(), **self.own_state()}

    def load(self, state: dict[str, Any]) -> None:
        self.number, self.since = state["number"], state.get("since", 0)  # checkpoints of 0.2.0 have none
        self.units.load(state["units"])
        self.load_own(state)

    @abstractmethod
    def observe(self, positions: np.ndarray, view: GradientView | None) -> None:
        """Learn from a step."""

    @abstractmethod
    def begin(self) -> None:
        """An epoch that is learned from begins; `number` is its number."""

    @abstractmethod
    def finish(self) -> None:
        """An epoch that was learned from ends: place units that have a sign. Collective where workers coordinate."""

    @abstractmethod
    def next_between(self) -> None:
        """An epoch that was not learned from ends: arrange the units for the next one, without a message."""

    @abstractmethod
    def herding(self) -> float:
        """The largest prefix norm of the last complete epoch that was learned from, relative to a random order."""

    @abstractmethod
    def own_state(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_own(self, state: dict[str, Any]) -> None: ...
