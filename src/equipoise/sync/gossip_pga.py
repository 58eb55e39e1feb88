from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..comm.ledger import mean_cost
from ..core.method import Metadata, option
from ..core.vector import ModelSize
from ..wire.channel import sum_cost
from .averaging import Averaging
from .gossip import Gossip
from .mixing import gossip_cost


@dataclass
class GossipPGA(Gossip):
    """Gossip with periodic global averaging: D-PSGD, but every H-th round is the mean of all models.

        x_i <- x_i - a g_i(x_i)                              the optimizer's step
        x_i <- sum_j W_ij x_j,   or in every H-th round   x_i <- sum_j pi_j x_j

    H is `every`, and pi_j the share of worker j, 1/N where shares are equal. H = 1 is the periodic average of each
    round; without gossip it would be that of every H-th. Disagreement is built up over H rounds at the most, so the
    bias of D-PSGD on non-IID data is that of a graph whose gap is at least about 1/H. It is proportional to the step
    and does not vanish.
    Stores the messages it receives. Sends one vector to each neighbour per round, in the H-th 2 (N - 1) / N vectors in
    2 (N - 1) messages: no more bytes than a round on a ring, but an all-reduce, in which all wait for all. Any
    optimizer may take the steps; its state stays local. Through a wire a gossip round sends distances to replicas,
    which begin anew at the mean after an average.
    Where shares pi_i of the examples differ, W_ij min(1, pi_j / pi_i) conserves the mean weighted by them.
    Reference: Chen et al., Accelerating Gossip SGD with Periodic Global Averaging, ICML 2021.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="gossip-pga",
        help="gossip, and the mean of all models every few rounds",
        cites=("chen2021accelerating", "lian2017can"),
    )

    every: int = option(4, help="H, one round in so many is the mean of all models", least=1)

    def init_state(self) -> None:
        self.start_gossip(self.agreed_graph(), weighted=True)
        self.averaging = Averaging(self.context, self.mixing.weights, "local")

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None: ...

    def after_step(self, x: torch.Tensor) -> None:
        if not self._averages(self.context.clock.rounds):
            self.mixing.mix(x)
            return
        self.averaging.average(x)
        self.mixing.agreed_on(x)
        self.averaging.keep_unsent(x)

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        if not due:
            return 0, 0
        if not self._averages(round):
            return gossip_cost(self.topology, model, rank, size, round)
        if model.wire is not None:
            return sum_cost(model, 1, rank, size)
        return mean_cost(model.elements, model.itemsize, rank, size)

    def _averages(self, round: int) -> bool:
        """Is this round the mean of all? A function of its number, so that workers agree on it."""
        return (round + 1) % self.every == 0
