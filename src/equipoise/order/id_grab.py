from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata, option
from .balanced_order import BalancedOrder
from .builder import Builder
from .epoch_builder import EpochBuilder
from .mean_estimate import MeanEstimate
from .sign_terms import PAIR, SINGLE, sign_locally


@dataclass
class IDGraB(BalancedOrder):
    """Every worker balances its own block, without coordination: the baseline of CD-GraB.

        balance = pair: PairBalance on each worker;  balance = mean: GraB on each worker

    No communication. Each worker's prefix is small but their sum is not: its floor grows like the square root of the
    world size, up to that of a random order.

    Reference: Cooper et al., NeurIPS 2023 (ID-GraB).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="id-grab", help="every worker balances its own block", cites=("cooper2023coordinating", "lu2022grab")
    )

    balance: str = option("pair", help="what each worker balances", choices=("pair", "mean"))

    def make_builder(self) -> Builder:
        signature = PAIR if self.balance == "pair" else SINGLE
        if self.chosen.sweeps > 1:
            return self.keep(signature)
        centre = None if self.balance == "pair" else MeanEstimate(None)
        return EpochBuilder(self.context, signature, self.group, self.chosen.every, self.sign, sign_locally, centre)
