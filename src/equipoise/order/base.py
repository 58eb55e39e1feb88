"""In which order does a worker visit its examples?"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.method import Method
from ..signal.base import Signal, View


@dataclass
class Order(Method):
    """A permutation per epoch, perhaps learned from gradients.

    Positions count the examples of this worker's block, 0 to `context.examples` - 1.
    """

    watches: ClassVar[bool] = False  # does it want to see gradients? Then it has a `watcher`.
    coordinated: ClassVar[bool] = False  # do workers talk about it at every step?
    watcher: ClassVar[Signal]  # what it sees them through; made by `start`

    @abstractmethod
    def epoch(self, number: int) -> np.ndarray:
        """The positions in the order in which epoch `number` visits them. All workers ask together."""

    @abstractmethod
    def observe(self, positions: np.ndarray, view: View | None) -> None:
        """What the watcher saw of the examples at `positions`.

        Called after every step on all workers together; a worker whose step did not count passes no positions and None.
        """
