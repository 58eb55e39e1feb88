from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.method import Metadata, option
from ..signal.base import GradientView
from .base import Order


@dataclass
class PairedReversal(Order):
    """Blocks of neighbours in random order, then the same order backwards in the next epoch.

    Even epochs draw an order of blocks of `block` examples (each shuffled inside); odd epochs run it backwards, so
    that the bias of the order cancels over a pair of epochs, to first order in the step size. It uses no gradients: a
    free baseline.

    Reference: Nguyen, Phan, Kalagnanam 2026 (arXiv 2604.00260).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="paired-reversal",
        help="blocks in random order, then the same order backwards",
        cites=("nguyen2026learning",),
    )

    block: int = option(16, help="neighbouring examples that stay together", least=1)

    def init_state(self) -> None: ...

    def epoch(self, number: int) -> np.ndarray:
        generator = self.context.worker.rng(1, number // 2)
        starts = np.arange(0, self.context.worker.examples, self.block)
        blocks = [
            np.arange(start, min(start + self.block, self.context.worker.examples))
            for start in generator.permutation(starts)
        ]
        order = np.concatenate([generator.permutation(block) for block in blocks]) if blocks else starts
        return order[::-1].copy() if number % 2 else order

    def observe(self, positions: np.ndarray, view: GradientView | None) -> None: ...
