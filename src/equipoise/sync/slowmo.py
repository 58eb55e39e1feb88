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
class SlowMo(Sync):
    """Slow momentum: what a round of local steps did, as a whole, is a gradient for a momentum of its own.

        d = (z - mean of all x) / a,   u <- beta u + d,   z <- z - alpha a u,   x <- z

    z is the model with which all began the round, a the local learning rate. With beta = 0 and alpha = 1 it is the
    periodic average. Stores two vectors, sends what the periodic average sends. Any local optimizer; its state is
    left alone, averaged or begun afresh at a round.
    Reference: Wang, Tantia, Ballas, Rabbat, SlowMo: Improving Communication-Efficient Distributed SGD with Slow
    Momentum, ICLR 2020.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="slowmo", help="Local SGD with a slow momentum over rounds", cites=("wang2020slowmo",)
    )

    STATE: ClassVar[tuple[str, ...]] = ("anchor", "momentum", "since")

    beta: float = option(0.7, help="slow momentum", least=0, below=1)
    alpha: float = option(1.0, help="slow learning rate", above=0)
    weights: str = option(
        "size", help="by share of the examples, all alike, or by samples since the last round", choices=WEIGHTS
    )
    state: str = option(
        "local", help="of the optimizer, at a round: left alone, averaged, or begun afresh", choices=STATES
    )

    def init_state(self) -> None:
        self.averaging = Averaging(self.context, self.weights, self.state)
        self.anchor: torch.Tensor | None = None  # z
        self.momentum = torch.zeros_like(self.flat.x)

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

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        if self.anchor is None:
            self.anchor = x.clone()

    def after_step(self, x: torch.Tensor) -> None:
        assert self.anchor is not None
        self.averaging.average(x)
        rate = self.context.clock.lr
        if rate > 0:  # a rate of zero has moved nobody
            self.momentum.mul_(self.beta).add_(self.anchor.sub(x), alpha=1.0 / rate)
            self.anchor.sub_(self.momentum, alpha=self.alpha * rate)
        x.copy_(self.anchor)

    def centre(self) -> torch.Tensor | None:
        return self.anchor

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        bound = self.averaging if self.is_bound else None
        return averaging_cost(bound, self.weights, model.elements, model.itemsize, rank, size) if due else (0, 0)
