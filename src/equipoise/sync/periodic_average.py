from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..comm.piggyback import Piggyback
from ..core.method import Metadata, option
from ..core.vector import ModelSize
from .averaging import STATES, WEIGHTS, Averaging, averaging_cost
from .base import Sync


@dataclass
class PeriodicAverage(Sync):
    """Local SGD: every worker trains alone for H steps, then all take the average of their parameters.

        x_i <- sum_j w_j x_j,   w_j = n_j / n   (the workers' shares of the examples)

    Works with any optimizer. What becomes of its state (momentum, Adam's moments) at a round is a choice: it stays
    local, is averaged in the same message (one vector more for each kind), or begins afresh. `weights="samples"` weighs by
    what each worker consumed since the last round, for batches or paces that differ; `"uniform"` by 1/N. H = 1
    with plain SGD and equal batches is data-parallel SGD, with unequal ones too if weighted by samples.
    Reference: Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="periodic-average", help="parameters averaged every H steps (Local SGD)", cites=("stich2019local",)
    )

    STATE: ClassVar[tuple[str, ...]] = ("since",)

    weights: str = option(
        "size", help="by share of the examples, all alike, or by samples since the last round", choices=WEIGHTS
    )
    state: str = option(
        "local", help="of the optimizer, at a round: left alone, averaged, or begun afresh", choices=STATES
    )

    def init_state(self) -> None:
        self.averaging = Averaging(self.context, self.weights, self.state)

    @property
    def since(self) -> int:
        return self.averaging.since

    @since.setter
    def since(self, value: int) -> None:
        self.averaging.since = value

    def averages(self) -> str:
        return "parameters"

    def carry(self, piggyback: Piggyback | None) -> None:
        self.averaging.piggyback = piggyback

    def mean_shares(self) -> list[float]:
        return self.averaging.mean_shares()

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None: ...

    def after_step(self, x: torch.Tensor) -> None:
        self.averaging.average(x)

    def centre(self) -> torch.Tensor | None:
        return None

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        bound = self.averaging if self.is_bound else None
        return averaging_cost(bound, self.weights, model.elements, model.itemsize, rank, size) if due else (0, 0)
