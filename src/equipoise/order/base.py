"""In which order does a worker visit its examples?"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.method import Method
from ..signal.base import GradientView, Signal


@dataclass
class Order(Method):
    """A permutation per epoch, perhaps learned from gradients.

    Positions count the examples of this worker's block, 0 to `context.worker.examples` - 1.
    """

    axis: ClassVar[str] = "order"

    watches: ClassVar[bool] = False  # does it learn from gradients? Then it has a `watcher`
    coordinated: ClassVar[bool] = False  # do workers communicate about it at every step?
    pure: ClassVar[bool] = False  # does an epoch follow from its number and the description of the worker alone?

    def watch_through(self, signal: Signal) -> None:
        """Called by `init_state` of an order that learns: the signal that gives it gradients."""
        self._watcher = signal.bind(self.context)

    @property
    def watcher(self) -> Signal:
        """The signal that this order learns from."""
        return self._watcher

    @property
    def learning(self) -> bool:
        """Does the present epoch need gradients? An order that watches may skip epochs: they cost nothing then."""
        return self.watches

    @abstractmethod
    def epoch(self, number: int) -> np.ndarray:
        """The positions in the order in which epoch `number` visits them. Collective: all workers call it."""

    def agreed_on(self) -> str:
        """A hash of what all workers have decided alike so far, where they decide together."""
        return ""

    @abstractmethod
    def observe(self, positions: np.ndarray, view: GradientView | None) -> None:
        """Learn from the gradients of the examples at `positions`.

        Called after every step of an epoch that is `learning`, on all workers; a worker whose step was skipped passes
        no positions and None.
        """
