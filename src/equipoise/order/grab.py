from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.errors import UserError
from ..core.method import Metadata, option
from .balance import SINGLE, alone
from .balanced import Balanced
from .balancer import Balancer
from .mean_estimate import Centre
from .recursive import nested


@dataclass
class GraB(Balanced):
    """Balance gradients less their mean (mean balance): what is added goes to the front, what is taken away to the
    back.

        v = g - m,   s = +1 if <S, v> <= 0 else -1,   S <- S + s v,   m <- mean of this epoch's gradients when it ends

    m is the mean of the last epoch and zero in the first, so the first reordering balances the wrong thing and a
    fast-moving model makes m stale: the learning rate must be small. With `decay` m is a running mean instead. On
    fixed gradients the floor is about 0.7 of `PairBalance`'s. Memory: three vectors.

    With `levels` = k those with the same sign are balanced again among themselves, k - 1 times, each time with a sum of
    their own: an epoch then does the work of k, for k times the products and 2^k + 1 vectors.

    Reference: Lu, Guo, De Sa, GraB: Finding Provably Better Data Permutations than Random Reshuffling, NeurIPS 2022.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="grab", help="balanced by gradients less their mean", cites=("lu2022grab",)
    )

    decay: float | None = option(
        None,
        help="centre by a running mean of batches with this decay instead of the last epoch's mean",
        above=0,
        most=1,
    )

    levels: int = option(1, help="balance so many times in an epoch, each half by itself", least=1, most=6)

    def refuse(self) -> None:
        if self.levels > 1 and (self.sign != "greedy" or self.signal == "forward"):
            raise UserError(
                f"GraB(levels={self.levels}): only with sign = greedy, and not with signal = forward, which sees whole batches: "
                "use signal = exact, projection, count-sketch or last-layer"
            )

    def make(self) -> Balancer:
        signer = alone if self.levels == 1 else nested(self.levels)
        return Balancer(self.context, SINGLE, self.group, self.sign, signer, Centre(self.decay))
