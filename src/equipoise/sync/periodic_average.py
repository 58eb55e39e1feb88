from __future__ import annotations

from dataclasses import dataclass

import torch

from ..comm.ledger import mean_cost
from ..method import option
from .base import Sync


@dataclass
class PeriodicAverage(Sync):
    """Local SGD: every worker trains alone for H steps, then all take the average of their parameters.

        x_i <- sum_j w_j x_j,   w_j = n_j / n   (the workers' shares of the examples)

    Works with any optimizer; its state (momentum, Adam's moments) stays local. `weights="uniform"` averages with
    1/N instead. H = 1 with plain SGD and equal batches is data-parallel SGD.
    Reference: Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019.
    """

    weights: str = option("size", help="weigh models by their worker's share of the examples, or all alike", choices=("size", "uniform"))

    def start(self) -> None: ...

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None: ...

    def after_step(self, x: torch.Tensor) -> None:
        self.context.clock.rounds += 1
        if self.weights == "uniform":
            self.context.comm.mean(x)
        else:
            self.context.comm.sum(x.mul_(self.context.share))

    def centre(self) -> torch.Tensor | None:
        return None

    def cost(self, elements: int, itemsize: int, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        return mean_cost(elements, itemsize, rank, size) if due else (0, 0)
