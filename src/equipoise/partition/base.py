"""Which examples does a worker own? A pure function of the data, the world size and the seed."""

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
    """Assigns every example to one worker. A partition implements `split`; `blocks` is final and checks the result."""

    axis: ClassVar[str] = "partition"

    claimed: ClassVar[bool] = False  # do workers claim batches of one list, instead of owning a block each?

    @abstractmethod
    def split(self, view: DatasetView, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
        """One array of example indices per worker; every example is in exactly one of them."""

    def blocks(self, view: DatasetView, workers: int, seed: int) -> list[np.ndarray]:
        """The checked split: every example is in exactly one block, every worker has at least one example."""
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
        owners = np.zeros(view.examples, dtype=np.int64)
        for block in blocks:
            np.add.at(owners, block, 1)
        assert (owners == 1).all(), f"{type(self).__name__} must give every example to exactly one worker"
        return _fill_empty_blocks(blocks)


def _fill_empty_blocks(blocks: list[np.ndarray]) -> list[np.ndarray]:
    """Move one example of the largest block to each empty block: a worker without data could not take part."""
    for i, block in enumerate(blocks):
        if len(block) == 0:
            largest = max(range(len(blocks)), key=lambda j: len(blocks[j]))
            blocks[i], blocks[largest] = blocks[largest][-1:], blocks[largest][:-1]
    return blocks
