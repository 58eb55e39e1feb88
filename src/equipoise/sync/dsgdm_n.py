from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import option
from ..topology.base import Topology
from ..topology.ring import Ring
from .base import Sync
from .mixing import WIRES, Mixing, agree, gossip_cost, mixing_gap
from .shares import BY, HELP


@dataclass
class DSGDmN(Sync):
    """Decentralised SGD with local Nesterov momentum: every worker keeps its own momentum and mixes only its model.

        m_i <- beta m_i + g_i
        x_i <- sum_j W_ij (x_j - a (g_j + beta m_j))

    Stores the momentum, sends one vector to each neighbour per round. Momenta of workers whose data differ never
    agree: with a constant step it stops exactly where D-PSGD with the step a / (1 - beta) does, at a distance
    from the optimum proportional to it. QG-DSGDm does not pay for its momentum in that way.
    The momentum is in the method: use plain SGD. An optimizer with a momentum of its own adds it on top, and two delays
    in a row ask for a far smaller step; Adam takes g + beta m for the gradient. A worker without examples keeps its
    momentum and only mixes.
    Where shares pi_i of the examples differ, W_ij min(1, pi_j / pi_i) conserves the mean weighted by them.
    Reference: the baseline of Lin et al., Quasi-Global Momentum, ICML 2021.
    """

    uses_gradient: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("momentum",)
    HEALTH: ClassVar[tuple[str, ...]] = ("spectral_gap",)

    topology: Topology = option(Ring(), help="who talks to whom")
    beta: float = option(0.9, help="of the momentum", least=0, below=1)
    wire: str = option("", help="dtype of the messages, that of the model if empty", choices=tuple(WIRES))
    weights: str = option("size", help=HELP, choices=BY)

    def start(self) -> None:
        assert self.context.flat is not None
        agree(self.context, self.topology, "DSGDm-N")
        self.mixing = Mixing(self.context, self.topology, WIRES[self.wire], weights=self.weights)
        self.momentum = torch.zeros_like(self.context.flat.x)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        assert g is not None
        if self.context.clock.batch:
            self.momentum.mul_(self.beta).add_(g)
            g.add_(self.momentum, alpha=self.beta)

    def after_step(self, x: torch.Tensor) -> None:
        self.mixing.mix(x)

    @property
    def spectral_gap(self) -> float:
        return mixing_gap(self.mixing.topology, self.mixing.shares)

    def centre(self) -> torch.Tensor | None:
        return None

    def cost(self, elements: int, itemsize: int, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        return gossip_cost(self.topology, elements, itemsize, rank, size, round, self.wire) if due else (0, 0)
