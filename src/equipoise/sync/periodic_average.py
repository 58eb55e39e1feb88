from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata, option
from ..core.vector import ModelSize
from .averaging import STATES, STATES_HELP, WEIGHTS, WEIGHTS_HELP, AveragesParameters


@dataclass
class PeriodicAverage(AveragesParameters):
    """Local SGD: every worker takes H local steps, then all workers average their parameters.

        x_i <- sum_j w_j x_j,   w_j = n_j / n   (the workers' shares of the examples)

    Works with any optimizer. At a round its state (momentum, Adam's moments) stays local, is averaged in the same
    message (one more vector per kind of moment), or is reset. `weights="samples"` weighs by the examples that each
    worker consumed since the last round, for unequal batches or throughput; `"uniform"` by 1/N. H = 1 with plain SGD
    and equal batches is data-parallel SGD, with unequal batches too if weighted by samples.
    Reference: Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="periodic-average", help="parameters averaged every H steps (Local SGD)", cites=("stich2019local",)
    )

    STATE: ClassVar[tuple[str, ...]] = ("samples_at_last_round",)
    OWN: ClassVar[tuple[str, ...]] = ("samples_at_last_round",)

    weights: str = option("size", help=WEIGHTS_HELP, choices=WEIGHTS)
    state: str = option("local", help=STATES_HELP, choices=STATES)

    def init_state(self) -> None:
        self.start_averaging(self.weights, self.state)

    def equal_after_round(self) -> bool:
        return not self.averaging.leaves_residuals

    def averages(self) -> str:
        return "parameters"

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None: ...

    def after_step(self, x: torch.Tensor) -> None:
        self.averaging.average(x)
        self.averaging.keep_unsent(x)

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        return self.average_cost(self.weights, model, rank, size) if due else (0, 0)
