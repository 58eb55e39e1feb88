from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..signal.base import View
from .base import Order


@dataclass
class Sequential(Order):
    """The examples as they lie, every epoch."""

    def start(self) -> None: ...

    def epoch(self, number: int) -> np.ndarray:
        return np.arange(self.context.examples)

    def observe(self, positions: np.ndarray, view: View | None) -> None: ...
