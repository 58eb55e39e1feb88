from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.method import option
from ..signal.base import View
from .base import Order


@dataclass
class PairedReversal(Order):
    """Blocks of neighbours in random order, and the whole of it backwards in the next epoch.

    Even epochs draw an order of blocks of `block` examples (each shuffled inside); odd epochs run it backwards, so
    that what the order adds to a pair of epochs cancels to the first power of the step. No gradient is looked at: a
    free baseline.

    Reference: Nguyen, Phan, Kalagnanam 2026 (arXiv 2604.00260).
    """

    block: int = option(16, help="neighbouring examples that stay together", least=1)

    def start(self) -> None: ...

    def epoch(self, number: int) -> np.ndarray:
        generator = self.context.rng(1, number // 2)
        starts = np.arange(0, self.context.examples, self.block)
        blocks = [
            np.arange(start, min(start + self.block, self.context.examples)) for start in generator.permutation(starts)
        ]
        order = np.concatenate([generator.permutation(block) for block in blocks]) if blocks else starts
        return order[::-1].copy() if number % 2 else order

    def observe(self, positions: np.ndarray, view: View | None) -> None: ...
