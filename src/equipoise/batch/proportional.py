from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata, option
from .base import Batch


@dataclass
class Proportional(Batch):
    """Sizes proportional to the workers' blocks, `mean` on average:

        b_j = mean N n_j / n   (rounded, at least 1)

    so all workers take the same number of steps per epoch and, where blocks are proportional to speeds, all steps take
    the same time. Where a size does not divide its block, some batches are smaller by one instead of a short last one.
    Sizes follow when examples are redistributed.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="proportional",
        help="proportional to the workers' blocks: all take the same number of steps per epoch",
        cites=("he2023rcdsgd",),
    )

    mean: int = option(32, help="examples per step and worker, on average", least=1)

    def init_state(self) -> None:
        from ..partition.capacity import batch_sizes

        shares = self.context.worker.shares or self.context.comm.gather_objects(self.context.worker.share)
        self._sizes = batch_sizes(shares, self.mean)

    @property
    def spreads(self) -> bool:
        return True

    def sizes(self) -> list[int]:
        return self._sizes
