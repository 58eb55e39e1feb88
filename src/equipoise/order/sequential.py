from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.method import Metadata
from ..signal.base import GradientView
from .base import Order


@dataclass
class Sequential(Order):
    """The order of the data set, every epoch."""

    metadata: ClassVar[Metadata] = Metadata(name="sequential", help="the order of the data set, every epoch")

    pure: ClassVar[bool] = True

    def init_state(self) -> None: ...

    def epoch(self, number: int) -> np.ndarray:
        return np.arange(self.context.worker.examples)

    def observe(self, positions: np.ndarray, view: GradientView | None) -> None: ...
