from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.method import Metadata
from ..data.view import DatasetView
from .base import Partition


@dataclass
class Contiguous(Partition):
    """The examples in the order of the data, cut into slices whose sizes differ by at most one."""

    metadata: ClassVar[Metadata] = Metadata(name="contiguous", help="equal slices of the data in its own order")

    def split(self, view: DatasetView, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
        return np.array_split(np.arange(view.examples), workers)
