from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata, option
from ..core.vector import ModelSize
from .averaging import STATES, STATES_HELP, WEIGHTS, WEIGHTS_HELP, AveragesParameters
from .initial_model import copy_once


@dataclass
class SlowMo(AveragesParameters):
    """Slow momentum: the progress of a round of local steps is the gradient of an outer momentum step.

        d = (z - mean of all x) / a,   u <- beta u + d,   z <- z - alpha a u,   x <- z

    z is the model with which all workers began the round, a the local learning rate. With beta = 0 and alpha = 1 it is
    the periodic average. Stores two vectors, sends what the periodic average sends. Any local optimizer; at a round
    its state is left alone, averaged or reset.
    Reference: Wang, Tantia, Ballas, Rabbat, SlowMo: Improving Communication-Efficient Distributed SGD with Slow
    Momentum, ICLR 2020.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="slowmo", help="Local SGD with a slow momentum over rounds", cites=("wang2020slowmo",)
    )

    centre_state: ClassVar[str] = "anchor"
    STATE: ClassVar[tuple[str, ...]] = ("anchor", "momentum", "samples_at_last_round")
    COMMON: ClassVar[tuple[str, ...]] = ("anchor", "momentum")
    OWN: ClassVar[tuple[str, ...]] = ("samples_at_last_round",)

    beta: float = option(0.7, help="slow momentum", least=0, below=1)
    alpha: float = option(1.0, help="slow learning rate", above=0)
    weights: str = option("size", help=WEIGHTS_HELP, choices=WEIGHTS)
    state: str = option("local", help=STATES_HELP, choices=STATES)

    def init_state(self) -> None:
        self.start_averaging(self.weights, self.state)
        self.anchor: torch.Tensor | None = None  # z
        self.momentum = torch.zeros_like(self.flat.x)

    def equal_after_round(self) -> bool:
        return not self.averaging.leaves_residuals

    def averages(self) -> str:
        return "parameters"

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        self.anchor = copy_once(self.anchor, x)

    def after_step(self, x: torch.Tensor) -> None:
        assert self.anchor is not None
        self.averaging.average(x, self.anchor)
        rate = self.context.clock.lr
        if rate > 0:  # with a rate of zero no worker has moved
            self.momentum.mul_(self.beta).add_(self.anchor.sub(x), alpha=1.0 / rate)
            self.anchor.sub_(self.momentum, alpha=self.alpha * rate)
        x.copy_(self.anchor)
        self.averaging.keep_unsent(x)

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        return self.average_cost(self.weights, model, rank, size) if due else (0, 0)
