from __future__ import annotations

from dataclasses import dataclass

import torch

from ..method import option
from ..topology.base import Topology
from ..topology.ring import Ring
from .base import Sync
from .mixing import Mixing, gossip_cost


@dataclass
class DPSGD(Sync):
    """Decentralised parallel SGD: every worker averages its model with its neighbours'.

        combine then adapt:   x_i <- sum_j W_ij x_j - a g_i(x_i)
        adapt then combine:   x_i <- sum_j W_ij (x_j - a g_j(x_j))

    Stores nothing but what arrives, sends one vector to each neighbour per round. With a constant step and workers whose
    data differ it stops at a distance from the optimum proportional to the step. Any optimizer may take the local step.
    Reference: Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NeurIPS 2017.
    """

    topology: Topology = option(Ring(), help="who talks to whom")
    combine: str = option("after", help="mix before or after the optimizer step", choices=("before", "after"))

    def start(self) -> None:
        self.mixing = Mixing(self.context, self.topology)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        if self.combine == "before" and self.context.clock.due:
            self.mixing.mix(x)

    def after_step(self, x: torch.Tensor) -> None:
        if self.combine == "after":
            self.mixing.mix(x)

    def centre(self) -> torch.Tensor | None:
        return None

    def cost(self, elements: int, itemsize: int, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        return gossip_cost(self.topology, elements, itemsize, rank, size, round) if due else (0, 0)
