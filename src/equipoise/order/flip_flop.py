from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..signal.base import View
from .base import Order


@dataclass
class FlipFlop(Order):
    """A fresh permutation in even epochs, the same one backwards in the odd epoch that follows.

    Reference: Rajput, Lee, Papailiopoulos, Permutation-Based SGD: Is Random Optimal?, ICLR 2022.
    """

    def start(self) -> None: ...

    def epoch(self, number: int) -> np.ndarray:
        forward = self.context.rng(1, number // 2).permutation(self.context.examples)
        return forward[::-1].copy() if number % 2 else forward

    def observe(self, positions: np.ndarray, view: View | None) -> None: ...
