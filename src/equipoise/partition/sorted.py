from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.method import Metadata, option
from ..data.view import DatasetView
from .base import Partition


@dataclass
class Sorted(Partition):
    """Sorted by label and cut into equal slices, with a part of the examples shuffled.

    `shuffled` = 0 gives every worker as few classes as possible, 1 is IID. Two readings of "X % shuffled":

    - `prefix`: sort all examples by label, shuffle the first X % of that list among themselves, cut. The last
      classes stay sorted for every X < 1 (the literal reading of the DeTAG experiments);
    - `uniform`: a random X % of the examples is spread evenly, the rest is sorted by label and cut.

    Reference: Lu and De Sa, Optimal Complexity in Decentralized Training, ICML 2021, section on experiments.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="sorted", help="sorted by label, X % shuffled, cut into equal slices", cites=("lu2021optimal",)
    )

    shuffled: float = option(0.0, help="part of the examples that is shuffled, 0 to 1", least=0.0, most=1.0)
    reading: str = option("prefix", help="which examples are shuffled", choices=("prefix", "uniform"))

    def split(self, view: DatasetView, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
        labels = view.classes("sorted")
        count = round(self.shuffled * view.examples)
        if self.reading == "prefix":
            ranked = np.argsort(labels, kind="stable")
            ranked[:count] = rng.permutation(ranked[:count])
            return np.array_split(ranked, workers)
        mixed = rng.permutation(view.examples)
        shuffled, rest = mixed[:count], np.sort(mixed[count:])
        ranked = rest[np.argsort(labels[rest], kind="stable")]
        # The shorter slices of one part join the longer ones of the other, so that sizes differ by at most one.
        by_label = np.array_split(ranked, workers)
        evenly = np.array_split(shuffled, workers)[::-1]
        return [np.concatenate(pair) for pair in zip(by_label, evenly, strict=True)]
