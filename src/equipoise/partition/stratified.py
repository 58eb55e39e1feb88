from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.method import Metadata, option
from ..data.view import DatasetView
from .base import Partition
from .blocks import Division, blocks_of, blocks_with_notes_logged, remarks, stratified
from .capacity import SPEEDS, check_speeds_option, checked_speeds, known_speeds
from .strata import strata


@dataclass
class Stratified(Partition):
    """At random within every class: C_lj = |V_l| r_j / sum(r) examples of class l for worker j, rounded down or up.

    Sizes are proportional to the speeds and classes are exactly balanced; features are balanced only on average. This
    is the baseline for every comparison of partitions.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="stratified", help="at random, but every class in proportion to the workers' speeds"
    )

    speeds: list[float] | str | None = option(None, help=SPEEDS, least=0)
    bins: int = option(10, help="groups of real-valued targets", least=1)
    remeasure: int = option(0, help="epochs between new measurements of speeds; 0: only at the start", least=0)

    def check(self) -> None:
        check_speeds_option(self.speeds)

    def split(self, view: DatasetView, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
        speeds = checked_speeds(known_speeds(self.speeds), workers)
        groups, notes = strata(view, self.bins, workers)
        owner, counts = stratified(groups, speeds, rng)
        values = np.full(counts.shape, np.nan)
        division = Division(blocks_of(owner, workers), groups, counts, values, notes + remarks(counts, speeds))
        return blocks_with_notes_logged(division)
