from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.errors import UserError
from ..core.method import option
from ..topology.base import Topology
from ..topology.ring import Ring
from .base import Sync
from .mixing import WIRES, Mixing, agree, gossip_cost, made_lazy, mixing_gap, require_static
from .shares import BY, HELP, weigh_gradient

_LEAST = -1.0 / 3.0 - 1e-9  # an even ring sits at -1/3 and converges


@dataclass
class D2(Sync):
    """D^2, or exact diffusion: gossip that remembers what mixing did to the model, and takes it back.

        psi_i <- x_i - a g_i(x_i)                  the optimizer's step
        x_i   <- sum_j W_ij (psi_j + c_j)
        c_i   <- x_i - psi_i

    which is X' = W (2 X - X_before - a (G - G_before)), written so that it holds when the step size changes. Reaches
    the optimum of the mean however much the workers' data differ. Stores one vector (c), sends one to each neighbour
    per step. Any update that is linear in the gradients keeps it exact, so momentum does; Adam scales each worker's
    gradient on its own, and what vanishes is then the mean of the scaled ones.
    Diverges if W has an eigenvalue below -1/3: such a graph is made lazy, or refused.
    Where shares pi_i of the examples differ, g_i is taken times N pi_i, so that every example counts the same.
    Reference: Tang et al., D^2: Decentralized Training over Decentralized Data, ICML 2018.
    """

    every_step: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("correction",)
    HEALTH: ClassVar[tuple[str, ...]] = ("spectral_gap",)

    topology: Topology = option(Ring(), help="who talks to whom; the same symmetric graph in every round")
    lazy: str = option(
        "auto", help="mix with (I + W) / 2 where W has an eigenvalue below -1/3, or refuse", choices=("auto", "never")
    )
    wire: str = option("", help="dtype of the messages, that of the model if empty", choices=tuple(WIRES))
    weights: str = option("size", help=HELP, choices=BY)

    def start(self) -> None:
        bound = agree(self.context, self.topology, "D2")
        graph = self.topology
        if bound.cycle == 1 and bound.symmetric and bound.lambda_min() < _LEAST:
            found = f"D2: {bound!r} over {bound.size} workers has the eigenvalue {bound.lambda_min():.3f}, below -1/3"
            if self.lazy == "never":
                raise UserError(f"{found}, and would diverge: give the topology lazy=True, or pass lazy='auto'")
            graph = made_lazy(graph, found, self.context)
        require_static(graph.on(self.context.size), "D2")
        assert self.context.flat is not None
        self.mixing = Mixing(self.context, graph, WIRES[self.wire])
        self.correction = torch.zeros_like(self.context.flat.x)
        self.corrected = torch.empty_like(self.correction)  # scratch

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        weigh_gradient(self.context, self.weights, g)

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
