from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.method import Metadata
from ..signal.base import GradientView
from .base import Order


@dataclass
class FlipFlop(Order):
    """A fresh permutation in even epochs, the same one backwards in the odd epoch that follows.

    Reference: Rajput, Lee, Papailiopoulos, Permutation-Based SGD: Is Random Optimal?, ICLR 2022.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="flip-flop", help="a random order, then the same one backwards", cites=("rajput2022permutation",)
    )

    pure: ClassVar[bool] = True

    def init_state(self) -> None: ...

    def epoch(self, number: int) -> np.ndarray:
        forward = self.context.worker.rng(1, number // 2).permutation(self.context.worker.examples)
        return forward[::-1].copy() if number % 2 else forward

    def observe(self, positions: np.ndarray, view: GradientView | None) -> None: ...
