from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.method import Metadata, option
from ..data.view import DatasetView
from .base import Partition


@dataclass
class Shards(Partition):
    """Sorted by label, cut into `per_worker` x workers shards, assigned at random: each worker holds a few classes.

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="shards",
        help="sorted by label, cut into shards, a few random ones for each worker",
        cites=("mcmahan2017communication",),
    )

    per_worker: int = option(2, help="shards that each worker receives", least=1)

    def split(self, view: DatasetView, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
        ranked = np.argsort(view.classes("shards"), kind="stable")
        shards = np.array_split(ranked, workers * self.per_worker)
        assigned = rng.permutation(len(shards)).reshape(workers, self.per_worker)
        return [np.concatenate([shards[s] for s in row]) for row in assigned]
