from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..signal.base import View
from .base import Order


@dataclass
class Reshuffle(Order):
    """Random reshuffling: a fresh permutation every epoch, from this worker's own stream."""

    def start(self) -> None: ...

    def epoch(self, number: int) -> np.ndarray:
        return self.context.rng(1, number).permutation(self.context.examples)

    def observe(self, positions: np.ndarray, view: View | None) -> None: ...
