"""Which examples does a worker own? A pure function of the data, the number of workers and the seed."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.errors import UserError
from ..core.method import Configurable
from ..data.view import DatasetView


@dataclass
class Partition(Configurable):
    """Final here: `blocks`, which checks what `split` made. A partition fills `split`."""

    axis: ClassVar[str] = "partition"

    @abstractmethod
    def split(self, view: DatasetView, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
        """One array of example indices per worker: disjoint, together everything."""

    def blocks(self, view: DatasetView, workers: int, seed: int) -> list[np.ndarray]:
        """The checked split: every example in exactly one block, every worker with at least one."""
        if workers < 1:
            raise UserError(f"workers = {workers}: at least 1 is needed")
        if workers > view.examples:
            raise UserError(f"{workers} workers but only {view.examples} examples: use at most {view.examples} workers")
        speeds = getattr(self, "speeds", None)
        for worker, rate in enumerate(speeds if isinstance(speeds, list) else []):
            if rate == 0:
                raise UserError(
                    f"worker {worker} has speed 0 and would train on nothing: leave it out (one worker less), or give "
                    "it a speed above zero"
                )
        blocks = [np.asarray(b, dtype=np.int64) for b in self.split(view, workers, np.random.default_rng([seed, 71]))]
        assert len(blocks) == workers
        seen = np.zeros(view.examples, dtype=np.int64)
        for block in blocks:
            np.add.at(seen, block, 1)
        assert (seen == 1).all(), f"{type(self).__name__} must give every example to exactly one worker"
        return _nobody_empty(blocks)


def _nobody_empty(blocks: list[np.ndarray]) -> list[np.ndarray]:
    """Give each empty worker one example of the largest block: a worker without data could not take part."""
    for i, block in enumerate(blocks):
        if len(block) == 0:
            largest = max(range(len(blocks)), key=lambda j: len(blocks[j]))
            blocks[i], blocks[largest] = blocks[largest][-1:], blocks[largest][:-1]
    return blocks
