from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..signal.base import View
from .base import Order


@dataclass
class ShuffleOnce(Order):
    """One random permutation, kept for the whole run."""

    def start(self) -> None: ...

    def epoch(self, number: int) -> np.ndarray:
        return self.context.rng(1, 0).permutation(self.context.examples)

    def observe(self, positions: np.ndarray, view: View | None) -> None: ...
