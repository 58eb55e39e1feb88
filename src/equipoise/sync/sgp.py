from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.method import Metadata, option
from ..core.vector import ModelSize
from ..topology.base import Topology
from ..topology.one_peer import OnePeer
from .base import Needs
from .gossip import OnGraph
from .joint_vector import JointVector
from .mixing import Mixing, gossip_cost
from .shares import scale_of


@dataclass
class SGP(OnGraph):
    """Stochastic gradient push: gossip on a directed graph; a push-sum weight sent with each model removes the bias.

        y_i <- sum_j P_ij (y_j - a g_j(x_j));   w_i <- sum_j P_ij w_j;   x_i = y_i / w_i

    Columns of P sum to 1, rows need not: any strongly connected graph is valid, since each worker only decides how it
    divides its own y and w among its out-neighbours. The model is always x: gradients are taken and weight decay acts
    there. A worker's steps are added to y unchanged, so any optimizer may take them, and several between two rounds.
    Where shares pi_i of the examples differ, they are multiplied by N pi_i, which is also the initial w. Stores w and
    one vector (y - x, or y - N pi_i x); w lies behind y in memory, and one message of d + 1 goes to each out-neighbour
    per round. Where in and out weights balance, as on the default graph, w stays 1. Like D-PSGD it stops at a distance
    from the optimum proportional to the step.
    Reference: Assran et al., Stochastic Gradient Push for Distributed Deep Learning, ICML 2019.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="sgp", help="gossip on directed graphs, de-biased by push-sum weights", cites=("assran2019stochastic",)
    )

    STATE: ClassVar[tuple[str, ...]] = ("weight", "offset")
    HEALTH: ClassVar[tuple[str, ...]] = ("least_weight",)

    topology: Topology = option(OnePeer(), help="who sends to whom; may be directed")

    def needs(self) -> Needs:
        return Needs(push_sum=True)

    def takes_wires(self, size: int) -> tuple[str, str]:
        return "none", "push-sum divides by weights, and what a message leaves out would move the mean"

    def init_state(self) -> None:
        self.mixing = Mixing(self.context, self.agreed_graph())
        self.joint = JointVector(self.flat, 1)  # [y | w] during a round
        self.scale = scale_of(self.context, self.weights)  # never updated: y contains steps scaled by it
        self.held: torch.Tensor | float = self.scale  # w; at the common start x = y / w
        self.offset = torch.zeros_like(self.flat.x)  # y - scale x

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None: ...

    def after_step(self, x: torch.Tensor) -> None:
        if self.scale != 1.0:
            x.mul_(self.scale)
        y = x.add_(self.offset)
        self.joint.tail[0] = self.held
        self.joint.mix(self.mixing, x)
        self.held = self.joint.tail[0].clone()
        self.offset.copy_(y)
        self.offset.sub_(x.div_(self.held), alpha=self.scale)

    @property
    def weight(self) -> float:
        """w, which stays on the device of the model until it is asked for."""
        return float(self.held)

    @weight.setter
    def weight(self, value: float) -> None:
        self.held = value

    def sent_with_model(self) -> dict[str, Any]:
        return {"offset": self.offset}

    def restart(self, x: torch.Tensor, common: torch.Tensor, *, replaced: bool) -> None:
        self.weight = self.scale  # y and w of a lost worker are lost: all begin anew at their x
        self.offset.zero_()

    @property
    def least_weight(self) -> float:
        """The smallest w of any worker: near zero, the division by it amplifies rounding errors."""
        return float(self.context.comm.gather(torch.tensor([self.weight], dtype=torch.float64)).min())

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        return gossip_cost(self.topology, model, rank, size, round, extra=1) if due else (0, 0)
