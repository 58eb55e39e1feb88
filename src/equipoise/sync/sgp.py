from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata, option
from ..core.vector import ModelSize
from ..topology.base import Topology
from ..topology.one_peer import OnePeer
from .base import Needs
from .gossip import OnGraph
from .mixing import Mixing, gossip_cost
from .shares import scale_of


@dataclass
class SGP(OnGraph):
    """Stochastic gradient push: models go along one-way links, and a weight that travels with them undoes the bias.

        y_i <- sum_j P_ij (y_j - a g_j(x_j));   w_i <- sum_j P_ij w_j;   x_i = y_i / w_i

    Columns of P sum to 1, rows need not: any strongly connected graph will do, each worker only decides whom it gives
    which share of its y and w. The model is always x, where gradients are taken and weights decay; a worker's steps
    are added to y as they are, so any optimizer may take them, and several between two rounds; where shares pi_i of the
    examples differ, N pi_i times, and w begins there. Stores w and one vector (y - x, or y - N pi_i x); w lies behind y in
    memory, and one message of d + 1 goes to each out-neighbour per round. Where in and out weights balance, as on the
    default graph, w stays 1. Like D-PSGD it stops at a distance from the optimum proportional to the step.
    Reference: Assran et al., Stochastic Gradient Push for Distributed Deep Learning, ICML 2019.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="sgp", help="gossip along one-way links, de-biased by push-sum weights", cites=("assran2019stochastic",)
    )

    STATE: ClassVar[tuple[str, ...]] = ("weight", "offset")
    HEALTH: ClassVar[tuple[str, ...]] = ("least_weight",)

    topology: Topology = option(OnePeer(), help="who sends to whom; may be directed")

    def needs(self) -> Needs:
        return Needs(push_sum=True)

    def init_state(self) -> None:
        self.mixing = Mixing(self.context, self.agreed_graph())
        self.both = self.flat.widen(1)  # [y | w] during a round
        self.scale = scale_of(self.context, self.weights)  # for good: what is in y was pushed with it
        self.weight = self.scale  # so that x = y / w at the common start
        self.offset = torch.zeros_like(self.flat.x)  # y - scale x

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None: ...

    def after_step(self, x: torch.Tensor) -> None:
        assert x.data_ptr() == self.both.data_ptr(), "the model has left its place before the weight"
        if self.scale != 1.0:
            x.mul_(self.scale)
        y = x.add_(self.offset)
        self.both[-1] = self.weight
        self.mixing.mix(self.both)
        self.weight = self.both[-1].item()
        self.offset.copy_(y)
        self.offset.sub_(x.div_(self.weight), alpha=self.scale)

    @property
    def least_weight(self) -> float:
        """The smallest w of any worker: near zero, the division amplifies rounding."""
        return float(self.context.comm.gather(torch.tensor([self.weight], dtype=torch.float64)).min())

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        return gossip_cost(self.topology, model.elements + 1, model.itemsize, rank, size, round) if due else (0, 0)
