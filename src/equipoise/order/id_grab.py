from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata, option
from .balance import PAIR, SINGLE, alone
from .balanced import Balanced
from .balancer import Balancer
from .mean_estimate import Centre


@dataclass
class IDGraB(Balanced):
    """Every worker balances its own block and nobody coordinates: the baseline of CD-GraB.

        balance = pair: PairBalance on each worker;  balance = mean: GraB on each worker

    No traffic. Each worker's prefix is small but their sum is not: its floor grows like the square root of the number
    of workers, up to a random order's.

    Reference: Cooper et al., NeurIPS 2023 (ID-GraB).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="id-grab", help="every worker balances its own block", cites=("cooper2023coordinating", "lu2022grab")
    )

    balance: str = option("pair", help="what each worker balances", choices=("pair", "mean"))

    def make(self) -> Balancer:
        if self.balance == "pair":
            return Balancer(self.context, PAIR, self.group, self.sign, alone)
        return Balancer(self.context, SINGLE, self.group, self.sign, alone, Centre(None))
