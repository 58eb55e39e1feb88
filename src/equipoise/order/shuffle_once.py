from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.method import Metadata
from ..signal.base import GradientView
from .base import Order


@dataclass
class ShuffleOnce(Order):
    """One random permutation, kept for the entire run."""

    metadata: ClassVar[Metadata] = Metadata(name="shuffle-once", help="one random order, kept")

    pure: ClassVar[bool] = True

    def init_state(self) -> None: ...

    def epoch(self, number: int) -> np.ndarray:
        return self.context.worker.rng(1, 0).permutation(self.context.worker.examples)

    def observe(self, positions: np.ndarray, view: GradientView | None) -> None: ...
