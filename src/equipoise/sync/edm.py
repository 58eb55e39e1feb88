from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.method import Metadata, option
from ..topology.base import Topology
from ..topology.ring import Ring
from .base import Needs
from .exact_diffusion import WIRES, convergent_graph, mix_corrected, why_divergent
from .gossip import STATIC, Gossip
from .wide import wide_zeros

_LEAST = -1.0 / 3.0 + 1e-9  # at -1/3 (an even ring that is not lazy) disagreement vanishes only if the loss is convex


@dataclass
class EDM(Gossip):
    """Exact diffusion with momentum: D^2 whose steps follow a running mean of the gradients.

        m_i   <- beta m_i + (1 - beta) g_i(x_i)
        psi_i <- x_i - a m_i                       the optimizer's step
        x_i   <- sum_j W_ij (psi_j + c_j)
        c_i   <- x_i - psi_i                       the displacement by mixing, subtracted in the next round

    A constant step reaches the optimum of the mean on non-IID data. Stores two vectors (m and c), sends one to each
    neighbour per step. c holds differences of models, so the step size may change. Diverges if W has an eigenvalue
    below -1/3: the default ring is lazy, another graph is made lazy, or refused.
    The momentum is part of the method: use plain SGD. The momentum of an optimizer adds to it: still exact, but it
    requires a much smaller step. Adam scales each worker's m separately, and converges where the mean of the scaled
    momenta vanishes. A worker without examples counts as one whose gradient is zero.
    Where shares pi_i of the examples differ, g_i is multiplied by N pi_i, so that every example counts the same.
    Reference: Hu et al., A Bias-Correction Decentralized Stochastic Gradient Algorithm with Momentum Acceleration,
    2025 (arXiv 2501.19082).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="edm", help="D2 with momentum; exact on non-IID data", cites=("hu2025bias",)
    )

    uses_gradient: ClassVar[bool] = True
    idle_steps: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("momentum", "correction")

    topology: Topology = option(Ring(lazy=True), help=STATIC)
    beta: float = option(0.9, help="of the momentum", least=0, below=1)
    lazy: str = option(
        "auto",
        help="mix with (I + W) / 2 where W has an eigenvalue of -1/3 or below, or refuse",
        choices=("auto", "never"),
    )

    def needs(self) -> Needs:
        return Needs(every_step=True, static_graph=True, repairs_graph=True)

    def takes_wires(self, size: int) -> tuple[str, str]:
        return WIRES

    def check_world(self, size: int) -> None:
        why_divergent(self.topology.on(size), self, _LEAST, never=self.lazy == "never")

    def init_state(self) -> None:
        graph = convergent_graph(self.agreed_graph(), self, _LEAST, never=self.lazy == "never")
        self.start_gossip(graph, weighted=False)
        self.momentum = wide_zeros(self.flat.x)
        self.correction = wide_zeros(self.flat.x)
        self.scratch = torch.empty_like(self.flat.x)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        assert g is not None
        self.weigh(g)
        g.copy_(self.momentum.mul_(self.beta).add_(g, alpha=1.0 - self.beta))

    def after_step(self, x: torch.Tensor) -> None:
        mix_corrected(self.mixing, x, self.correction, self.scratch)

    def sent_with_model(self) -> dict[str, Any]:
        return {"correction": self.correction}

    def restart(self, x: torch.Tensor, common: torch.Tensor, *, replaced: bool) -> None:
        self.correction.zero_()  # on all workers: corrections sum to zero
