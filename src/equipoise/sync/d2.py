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

_LEAST = -1.0 / 3.0 - 1e-9  # an even ring has -1/3 and converges


@dataclass
class D2(Gossip):
    """D^2, or exact diffusion: gossip whose next round subtracts the displacement that mixing caused in this one.

        psi_i <- x_i - a g_i(x_i)                  the optimizer's step
        x_i   <- sum_j W_ij (psi_j + c_j)
        c_i   <- x_i - psi_i

    which is X' = W (2 X - X_before - a (G - G_before)), written so that it holds when the step size changes. Reaches
    the optimum of the mean on non-IID data. Stores one vector (c), sends one to each neighbour per step. Any update
    that is linear in the gradients, such as momentum, keeps it exact; Adam scales each worker's gradient separately,
    and converges where the mean of the scaled gradients vanishes.
    Diverges if W has an eigenvalue below -1/3: such a graph is made lazy, or refused.
    Where shares pi_i of the examples differ, g_i is multiplied by N pi_i, so that every example counts the same.
    Reference: Tang et al., D^2: Decentralized Training over Decentralized Data, ICML 2018.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="d2", help="gossip with bias correction; exact on non-IID data", cites=("tang2018d2",)
    )

    STATE: ClassVar[tuple[str, ...]] = ("correction",)

    topology: Topology = option(Ring(), help=STATIC)
    lazy: str = option(
        "auto", help="mix with (I + W) / 2 where W has an eigenvalue below -1/3, or refuse", choices=("auto", "never")
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
        self.correction = wide_zeros(self.flat.x)
        self.scratch = torch.empty_like(self.flat.x)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        self.weigh(g)

    def after_step(self, x: torch.Tensor) -> None:
        mix_corrected(self.mixing, x, self.correction, self.scratch)

    def sent_with_model(self) -> dict[str, Any]:
        return {"correction": self.correction}

    def restart(self, x: torch.Tensor, common: torch.Tensor, *, replaced: bool) -> None:
        self.correction.zero_()  # on all workers: corrections sum to zero
