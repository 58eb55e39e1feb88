from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.errors import UserError
from ..core.method import option
from ..topology.base import Topology
from ..topology.ring import Ring
from .base import Sync
from .mixing import WIRES, Mixing, agree, gossip_cost, made_lazy, mixing_gap
from .shares import BY, HELP, weigh_gradient

_LEAST = -1.0 / 3.0 + 1e-9  # at -1/3, an even ring that is not lazy, disagreement fades only where the loss is convex


@dataclass
class EDM(Sync):
    """Exact diffusion with momentum: D^2 whose steps follow a running mean of the gradients.

        m_i   <- beta m_i + (1 - beta) g_i(x_i)
        psi_i <- x_i - a m_i                       the optimizer's step
        x_i   <- sum_j W_ij (psi_j + c_j)
        c_i   <- x_i - psi_i                       what mixing did to the model, taken back in the next round

    A constant step reaches the optimum of the mean however much the workers' data differ. Stores two vectors (m and c),
    sends one to each neighbour per step. c holds differences of models, so the step size may change. Diverges if W
    has an eigenvalue below -1/3: the default ring is lazy, another graph is made so, or refused.
    The momentum is in the method: use plain SGD. An optimizer with a momentum of its own adds it on top: still exact,
    but two delays in a row ask for a far smaller step. Adam scales each worker's m on its own, and what then agrees is
    the mean of the scaled ones. A worker without examples counts as one whose gradient is zero.
    Where shares pi_i of the examples differ, g_i is taken times N pi_i, so that every example counts the same.
    Reference: Hu et al., A Bias-Correction Decentralized Stochastic Gradient Algorithm with Momentum Acceleration,
    2025 (arXiv 2501.19082).
    """

    uses_gradient: ClassVar[bool] = True
    every_step: ClassVar[bool] = True
    idle_steps: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("momentum", "correction")
    HEALTH: ClassVar[tuple[str, ...]] = ("spectral_gap",)

    topology: Topology = option(Ring(lazy=True), help="who talks to whom; the same symmetric graph in every round")
    beta: float = option(0.9, help="of the momentum", least=0, below=1)
    lazy: str = option(
        "auto",
        help="mix with (I + W) / 2 where W has an eigenvalue of -1/3 or below, or refuse",
        choices=("auto", "never"),
    )
    wire: str = option("", help="dtype of the messages, that of the model if empty", choices=tuple(WIRES))
    weights: str = option("size", help=HELP, choices=BY)

    def start(self) -> None:
        assert self.context.flat is not None
        graph, bound = self.topology, agree(self.context, self.topology, "EDM", static=True)
        if bound.lambda_min() < _LEAST:
            found = (
                f"EDM: {bound!r} over {bound.size} workers has the eigenvalue {bound.lambda_min():.3f}, not above -1/3"
            )
            if self.lazy == "never":
                raise UserError(f"{found}, and may diverge: give the topology lazy=True, or pass lazy='auto'")
            graph = made_lazy(graph, found, self.context)
        self.mixing = Mixing(self.context, graph, WIRES[self.wire])
        self.momentum = torch.zeros_like(self.context.flat.x)
        self.correction = torch.zeros_like(self.momentum)
        self.corrected = torch.empty_like(self.momentum)  # scratch

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        assert g is not None
        weigh_gradient(self.context, self.weights, g)
        g.copy_(self.momentum.mul_(self.beta).add_(g, alpha=1.0 - self.beta))

    def after_step(self, x: torch.Tensor) -> None:
        mixed = self.mixing.mix(torch.add(x, self.correction, out=self.corrected))
        torch.sub(mixed, x, out=self.correction)
        x.copy_(mixed)

    @property
    def spectral_gap(self) -> float:
        return mixing_gap(self.mixing.topology)

    def centre(self) -> torch.Tensor | None:
        return None

    def cost(self, elements: int, itemsize: int, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        return gossip_cost(self.topology, elements, itemsize, rank, size, round, self.wire) if due else (0, 0)
