from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata, option
from .base import Batch


@dataclass
class Proportional(Batch):
    """Sizes in proportion to the workers' blocks, `mean` on average:

        b_j = mean N n_j / n   (rounded, at least 1)

    so all workers take the same number of steps per epoch, and, where blocks are in proportion to speeds, all steps
    take the same time. Where a size does not divide its block the batches are one smaller, as many as it takes, instead of
    the last ones short. Follows blocks that are dealt out anew.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="proportional",
        help="in proportion to the workers' blocks: as many steps, as long, for all",
        cites=("he2023rcdsgd",),
    )

    spreads: ClassVar[bool] = True

    mean: int = option(32, help="examples per step and worker, on average", least=1)

    def init_state(self) -> None:
        from ..partition.capacity import batch_sizes

        shares = self.context.worker.shares or self.context.comm.gather_objects(self.context.worker.share)
        self._sizes = batch_sizes(shares, self.mean)

    def sizes(self) -> list[int]:
        return self._sizes
