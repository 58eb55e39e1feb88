from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.errors import UserError
from ..core.method import Metadata, option
from .balanced_order import BalancedOrder
from .builder import Builder
from .epoch_builder import EpochBuilder
from .mean_estimate import MeanEstimate
from .recursive import recursive_signer
from .sign_terms import SINGLE, sign_locally


@dataclass
class GraB(BalancedOrder):
    """Balance centred gradients (mean balance): examples with sign + go to the front, those with sign - to the back.

        v = g - m,   s = +1 if <S, v> <= 0 else -1,   S <- S + s v,   m <- mean of this epoch's gradients when it ends

    m is the mean of the last epoch and zero in the first, so the first reordering balances uncentred gradients and a
    fast-moving model makes m stale: the learning rate must be small. With `decay`, m is a running mean instead. On
    fixed gradients the floor is about 0.7 of `PairBalance`'s. Memory: three vectors.

    With `levels` = k, examples with the same sign are balanced again among themselves, k - 1 times, each time with a
    running sum of their own: one epoch then does the work of k, for k times the products and 2^k + 1 vectors.

    Reference: Lu, Guo, De Sa, GraB: Finding Provably Better Data Permutations than Random Reshuffling, NeurIPS 2022.
    """

    metadata: ClassVar[Metadata] = Metadata(name="grab", help="balanced by centred gradients", cites=("lu2022grab",))

    decay: float | None = option(
        None,
        help="subtract a running mean of batches with this decay instead of the last epoch's mean",
        above=0,
        most=1,
    )

    levels: int = option(
        1, help="recursion depth: times that an epoch is balanced, each half by itself", least=1, most=6
    )

    @property
    def streams(self) -> bool:
        return self.levels > 1 or self.decay is not None

    def check_method(self) -> None:
        if self.levels > 1 and (self.sign != "greedy" or self.signal == "forward"):
            raise UserError(
                f"GraB(levels={self.levels}): recursive balancing needs sign = greedy, and inner products of examples, "
                "which signal = forward has not: use signal = exact, projection, count-sketch or last-layer"
            )

    def make_builder(self) -> Builder:
        if self.chosen.sweeps > 1:
            return self.keep(SINGLE)
        signer = sign_locally if self.levels == 1 else recursive_signer(self.levels)
        centre = MeanEstimate(self.decay)
        return EpochBuilder(self.context, SINGLE, self.group, self.chosen.every, self.sign, signer, centre)
