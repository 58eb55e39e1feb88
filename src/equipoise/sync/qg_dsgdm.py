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
class QGDSGDm(Sync):
    """Quasi-global momentum: the momentum follows how the mixed model moved, not the worker's own gradients.

        d_i  = g_i + beta m_i               or, nesterov,  g_i + beta (g_i + beta m_i)
        x'_i = sum_j W_ij (x_j - a d_j)
        m_i <- mu m_i + (1 - mu) (x_i - x'_i) / a;   x_i <- x'_i

    With a period of H the difference spans the H local steps and is divided by the sum of their learning rates. Stores
    the momentum and the model after the last round, sends one vector to each neighbour per round. At rest m is zero,
    so with a constant step it stops exactly where D-PSGD with the step a does ((1 + beta) a with nesterov), at a
    distance from the optimum proportional to it, but travels there as fast as with a / (1 - beta).
    The momentum is in the method: use plain SGD. A momentum of the optimizer's own would feed on itself through m and
    diverge at any step. With Adam (x - x') / a counts Adam's normalised steps and joins gradients of another scale:
    that runs, but is not the method of the paper.
    Where shares pi_i of the examples differ, W_ij min(1, pi_j / pi_i) conserves the mean weighted by them.
    Reference: Lin et al., Quasi-Global Momentum: Accelerating Decentralized Deep Learning on Heterogeneous Data,
    ICML 2021.
    """

    uses_gradient: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("momentum", "anchor", "travelled")
    HEALTH: ClassVar[tuple[str, ...]] = ("spectral_gap",)

    topology: Topology = option(Ring(), help="who talks to whom")
    beta: float = option(0.9, help="how much of the momentum joins each gradient", least=0, below=1)
    mu: float = option(0.9, help="how slowly the momentum follows the model", least=0, below=1)
    nesterov: bool = option(False, help="look ahead along the momentum (QG-DSGDm-N)")
    wire: str = option("", help="dtype of the messages, that of the model if empty", choices=tuple(WIRES))
    weights: str = option("size", help=HELP, choices=BY)

    def start(self) -> None:
        assert self.context.flat is not None
        agree(self.context, self.topology, "QG-DSGDm")
        self.mixing = Mixing(self.context, self.topology, WIRES[self.wire], weights=self.weights)
        self.momentum = torch.zeros_like(self.context.flat.x)
        self.anchor = torch.zeros_like(self.context.flat.x)
        self.travelled = 0.0  # the learning rates since the last round, summed

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        assert g is not None
        if self.travelled == 0.0:
            self.anchor.copy_(x)
        self.travelled += self.context.clock.lr
        if self.nesterov:
            g.mul_(1.0 + self.beta).add_(self.momentum, alpha=self.beta**2)
        else:
            g.add_(self.momentum, alpha=self.beta)

    def after_step(self, x: torch.Tensor) -> None:
        self.mixing.mix(x)
        if self.travelled > 0.0:  # with a learning rate of 0 the difference is mixing alone, and no direction
            self.momentum.mul_(self.mu).add_(self.anchor.sub_(x), alpha=(1.0 - self.mu) / self.travelled)
        self.travelled = 0.0

    @property
    def spectral_gap(self) -> float:
        return mixing_gap(self.mixing.topology, self.mixing.shares)

    def centre(self) -> torch.Tensor | None:
        return None

    def cost(self, elements: int, itemsize: int, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        return gossip_cost(self.topology, elements, itemsize, rank, size, round, self.wire) if due else (0, 0)
