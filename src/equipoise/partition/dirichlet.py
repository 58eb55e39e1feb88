from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.method import Metadata, option
from ..data.view import DatasetView
from .base import Partition


@dataclass
class Dirichlet(Partition):
    """For each class, draw workers' shares from Dirichlet(alpha, ..., alpha) and cut that class accordingly.

    A smaller alpha is more non-IID: at 0.1 most of a class is on one or two workers, at 100 the split is nearly even.
    Block sizes differ too. A worker whose block would be empty receives one example of the largest block.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="dirichlet",
        help="each class spread over workers by Dirichlet(alpha); small alpha is more skewed",
        cites=("hsu2019measuring",),
    )

    alpha: float = option(0.5, help="concentration; smaller is more skewed", above=0.0, most=1e9)

    def split(self, view: DatasetView, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
        labels = view.classes("dirichlet")
        blocks: list[list[np.ndarray]] = [[] for _ in range(workers)]
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(workers, self.alpha))
            cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
            for block, part in zip(blocks, np.split(members, cuts), strict=True):
                block.append(part)
        return [np.concatenate(block) for block in blocks]
