from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.method import Metadata
from ..signal.base import GradientView
from .base import Order


@dataclass
class Reshuffle(Order):
    """Random reshuffling: a fresh permutation every epoch, from this worker's own random stream."""

    metadata: ClassVar[Metadata] = Metadata(name="reshuffle", help="a fresh random order every epoch")

    pure: ClassVar[bool] = True

    def init_state(self) -> None: ...

    def epoch(self, number: int) -> np.ndarray:
        return self.context.worker.rng(1, number).permutation(self.context.worker.examples)

    def observe(self, positions: np.ndarray, view: GradientView | None) -> None: ...
