from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.method import Metadata, option
from ..data.view import DatasetView
from .base import Partition
from .capacity import SPEEDS, capacities, check_speeds_option, checked_speeds, known_speeds


@dataclass
class IID(Partition):
    """A random permutation of all examples, cut into equal slices, or into slices in proportion to speeds.

    Sizes are within one of the exact proportion; classes and features are balanced only on average.
    """

    metadata: ClassVar[Metadata] = Metadata(name="iid", help="a random, equal share for every worker")

    speeds: list[float] | str | None = option(None, help=SPEEDS, least=0)

    def check(self) -> None:
        check_speeds_option(self.speeds)

    def split(self, view: DatasetView, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
        permutation = rng.permutation(view.examples)
        if self.speeds is None:
            return np.array_split(permutation, workers)
        sizes = capacities([view.examples], checked_speeds(known_speeds(self.speeds), workers))[0]
        return np.split(permutation, np.cumsum(sizes)[:-1])
