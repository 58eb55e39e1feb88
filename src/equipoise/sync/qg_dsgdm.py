from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata, option
from .gossip import Gossip


@dataclass
class QGDSGDm(Gossip):
    """Quasi-global momentum: the momentum follows the displacement of the mixed model, not the local gradients.

        d_i  = g_i + beta m_i               or, nesterov,  g_i + beta (g_i + beta m_i)
        x'_i = sum_j W_ij (x_j - a d_j)
        m_i <- mu m_i + (1 - mu) (x_i - x'_i) / a;   x_i <- x'_i

    With a period of H the difference spans the H local steps and is divided by the sum of their learning rates. Stores
    the momentum and the model after the last round, sends one vector to each neighbour per round. At a fixed
    point m is zero, so with a constant step it stops exactly where D-PSGD with the step a does ((1 + beta) a with
    nesterov), at a distance from the optimum proportional to it, but converges there as fast as with a / (1 - beta).
    The momentum is part of the method: use plain SGD. Momentum in the optimizer would be amplified through m and
    diverge at any step. With Adam (x - x') / a contains Adam's normalised steps and is added to gradients of another
    scale: that runs, but is not the method of the paper.
    Where shares pi_i of the examples differ, W_ij min(1, pi_j / pi_i) conserves the mean weighted by them.
    Reference: Lin et al., Quasi-Global Momentum: Accelerating Decentralized Deep Learning on Heterogeneous Data,
    ICML 2021.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="qg-dsgdm", help="gossip with a momentum that follows the mixed model", cites=("lin2021quasi",)
    )

    uses_gradient: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("momentum", "anchor", "lr_sum")
    OWN: ClassVar[tuple[str, ...]] = ("momentum", "anchor", "lr_sum")

    beta: float = option(0.9, help="part of the momentum that is added to each gradient", least=0, below=1)
    mu: float = option(0.9, help="how slowly the momentum follows the model", least=0, below=1)
    nesterov: bool = option(False, help="Nesterov look-ahead (QG-DSGDm-N)")

    def init_state(self) -> None:
        self.start_gossip(self.agreed_graph(), weighted=True)
        self.momentum = torch.zeros_like(self.flat.x)
        self.anchor = torch.zeros_like(self.flat.x)
        self.lr_sum = 0.0  # the sum of the learning rates since the last round

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        assert g is not None
        if self.lr_sum == 0.0:
            self.anchor.copy_(x)
        self.lr_sum += self.context.clock.lr
        if self.nesterov:
            g.mul_(1.0 + self.beta).add_(self.momentum, alpha=self.beta**2)
        else:
            g.add_(self.momentum, alpha=self.beta)

    def after_step(self, x: torch.Tensor) -> None:
        self.mixing.mix(x)
        if self.lr_sum > 0.0:  # with a learning rate of 0 the difference comes from mixing alone
            self.momentum.mul_(self.mu).add_(self.anchor.sub_(x), alpha=(1.0 - self.mu) / self.lr_sum)
        self.lr_sum = 0.0
