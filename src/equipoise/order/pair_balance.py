from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata
from .balance import PAIR, alone
from .balanced import Balanced
from .balancer import Balancer


@dataclass
class PairBalance(Balanced):
    """Balance the differences of neighbours: one goes to the front of the next epoch, the other to the back.

        v = g_(2k-1) - g_(2k),   s = +1 if <S, v> <= 0 else -1,   S <- S + s v
        s = +1: the first to the front, the second to the back; s = -1: the other way round

    The mean cancels in the difference, so none has to be known and the learning rate need not be small. With fixed
    gradients the largest prefix norm falls to about the square root of their effective dimension within log2(n)
    epochs; a random order has sqrt(n). In one epoch there is nothing to gain: the first order is random. With several
    workers each balances its own block; `CDGraB` balances all of them together.

    An odd example out stays in the middle of the next order. Memory: one vector.

    Reference: Cooper, Guo, Pham, Yuan, Ruan, Lu, De Sa, Coordinating Distributed Example Orders for Provably
    Accelerated Training, NeurIPS 2023.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="pair-balance",
        help="balanced by differences of neighbours' gradients",
        cites=("cooper2023coordinating", "lu2022grab"),
    )

    def make(self) -> Balancer:
        return Balancer(self.context, PAIR, self.group, self.sign, alone)
