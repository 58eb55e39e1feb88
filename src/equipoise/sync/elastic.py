"""What EASGD and EAMSGD share: a round in which workers and the centre attract each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..comm.ledger import mean_cost
from ..core.method import option
from ..core.vector import ModelSize
from ..wire.channel import SumChannel, sum_cost
from .base import Sync
from .initial_model import copy_once
from .shares import BY, HELP, mean_of, shares_of


@dataclass
class Elastic(Sync):
    """Final here: the centre and the round. A method calls `init_centre` and `place_centre` in the hooks it fills."""

    centre_state: ClassVar[str] = "centre_model"

    pull: float = option(
        0.9, help="how far the centre moves to the mean at a round; workers move 1 / N of it", least=0, most=1
    )
    weights: str = option("size", help=HELP, choices=BY)

    def init_centre(self) -> None:
        self.centre_model: torch.Tensor | None = None
        wire = self.context.wire
        self.channel = wire.sums("centre", feedback=False) if wire is not None else None

    def takes_wires(self, size: int) -> tuple[str, str]:
        return "all", ""

    def place_centre(self, x: torch.Tensor) -> None:
        """The centre starts at the common initial model."""
        self.centre_model = copy_once(self.centre_model, x)

    def after_step(self, x: torch.Tensor) -> None:
        """x_m <- x_m - (pull / N) (x_m - c);  c <- c + pull (mean of x - c), both with the old values."""
        assert self.centre_model is not None
        self.context.clock.rounds += 1
        if self.channel is None:
            mean = mean_of(self.context, x.clone(), self.mean_shares())
        else:
            mean = self._mean_through(self.channel, x, self.centre_model)
        x.lerp_(self.centre_model, self.pull / self.context.size)
        self.centre_model.lerp_(mean, self.pull)

    def _mean_through(self, channel: SumChannel, x: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
        """c + sum_j w_j C(x_j - c). Distances to the centre persist from round to round: no residual is added to them.

        What a message leaves out is still in the next distance, because the centre has moved by what was received.
        """
        shares = self.mean_shares()
        weight = shares[self.context.rank] if shares else 1.0
        total, (weights,) = channel.sum((x - centre).mul_(weight), [weight])
        return centre + total.div_(weights).to(x.dtype)

    def mean_shares(self) -> list[float]:
        return shares_of(self.context, self.weights)

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        if not due:
            return 0, 0
        if model.wire is not None:
            return sum_cost(model, 1, rank, size)
        return mean_cost(model.elements, model.itemsize, rank, size)
