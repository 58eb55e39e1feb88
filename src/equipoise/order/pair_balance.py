from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata
from .balanced_order import BalancedOrder
from .builder import Builder
from .epoch_builder import EpochBuilder
from .sign_terms import PAIR, sign_locally


@dataclass
class PairBalance(BalancedOrder):
    """Balance the differences of neighbours: one goes to the front of the next epoch, the other to the back.

        v = g_(2k-1) - g_(2k),   s = +1 if <S, v> <= 0 else -1,   S <- S + s v
        s = +1: the first to the front, the second to the back; s = -1: the other way round

    The mean cancels in the difference, so it need not be estimated and the learning rate need not be small. With fixed
    gradients the largest prefix norm falls to about the square root of their effective dimension within log2(n)
    epochs; a random order has sqrt(n). In one epoch there is nothing to gain: the first order is random. With several
    workers each balances its own block; `CDGraB` balances all of them together.

    With an odd number of examples the last one goes to the middle of the next order. Memory: one vector.

    Reference: Cooper, Guo, Pham, Yuan, Ruan, Lu, De Sa, Coordinating Distributed Example Orders for Provably
    Accelerated Training, NeurIPS 2023.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="pair-balance",
        help="balanced by differences of neighbours' gradients",
        cites=("cooper2023coordinating", "lu2022grab"),
    )

    def make_builder(self) -> Builder:
        if self.chosen.sweeps > 1:
            return self.keep(PAIR)
        return EpochBuilder(self.context, PAIR, self.group, self.chosen.every, self.sign, sign_locally)
