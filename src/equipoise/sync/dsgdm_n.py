from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata, option
from .gossip import Gossip
from .momentum import nesterov


@dataclass
class DSGDmN(Gossip):
    """Decentralised SGD with local Nesterov momentum: every worker keeps its own momentum and mixes only its model.

        m_i <- beta m_i + g_i
        x_i <- sum_j W_ij (x_j - a (g_j + beta m_j))

    Stores the momentum, sends one vector to each neighbour per round. On non-IID data the momenta of workers never
    agree: with a constant step it stops exactly where D-PSGD with the step a / (1 - beta) does, at a distance from the
    optimum proportional to that step. QG-DSGDm does not have this larger bias.
    The momentum is part of the method: use plain SGD. The momentum of an optimizer adds to it and requires a much
    smaller step; Adam receives g + beta m as the gradient. A worker without examples keeps its momentum and only mixes.
    Where shares pi_i of the examples differ, W_ij min(1, pi_j / pi_i) conserves the mean weighted by them.
    Reference: the baseline of Lin et al., Quasi-Global Momentum, ICML 2021.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="dsgdm-n", help="gossip with local Nesterov momentum", cites=("lin2021quasi",)
    )

    uses_gradient: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("momentum",)
    OWN: ClassVar[tuple[str, ...]] = ("momentum",)

    beta: float = option(0.9, help="of the momentum", least=0, below=1)

    def init_state(self) -> None:
        self.start_gossip(self.agreed_graph(), weighted=True)
        self.momentum = torch.zeros_like(self.flat.x)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        assert g is not None
        if self.context.clock.batch:
            nesterov(self.momentum, g, self.beta)

    def after_step(self, x: torch.Tensor) -> None:
        self.mixing.mix(x)
