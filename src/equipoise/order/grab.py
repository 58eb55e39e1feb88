from __future__ import annotations

from dataclasses import dataclass

from ..method import option
from .balance import alone
from .balanced import Balanced
from .balancer import SINGLE, Balancer
from .centre import Centre


@dataclass
class GraB(Balanced):
    """Balance gradients less their mean (mean balance): what is added goes to the front, what is taken away to the
    back.

        v = g - m,   s = +1 if <S, v> <= 0 else -1,   S <- S + s v,   m <- mean of this epoch's gradients when it ends

    m is the mean of the last epoch and zero in the first, so the first reordering balances the wrong thing and a
    fast-moving model makes m stale: the learning rate must be small. With `decay` m is a running mean instead. On
    fixed gradients the floor is about 0.7 of `PairBalance`'s. Memory: three vectors.

    Reference: Lu, Guo, De Sa, GraB: Finding Provably Better Data Permutations than Random Reshuffling, NeurIPS 2022.
    """

    decay: float | None = option(
        None,
        help="centre by a running mean of batches with this decay instead of the last epoch's mean",
        above=0,
        most=1,
    )

    def make(self) -> Balancer:
        return Balancer(self.context, SINGLE, self.group, self.sign, alone, Centre(self.decay))
