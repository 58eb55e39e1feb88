from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata, option
from ..core.vector import ModelSize
from ..topology.base import Topology
from ..topology.ring import Ring
from .accelerated import KINDS, GossipPlan, gossip
from .accumulation import accumulate
from .base import Needs, StepPlan
from .gossip import STATIC, Gossip
from .mixing import gossip_cost


@dataclass
class MGDSGD(Gossip):
    """Multiple-gossip DSGD: gradients accumulated at a frozen model, one step, then R rounds of accelerated gossip.

        s_i <- mean of g_i(x_i) over the steps of a period
        x_i <- AG_R(x - a s)_i

    A period of H steps is one phase: the model is updated at its last step only. The paper's choice is H = R. Without a
    tracker it sends half of what DeTAG does, but has a bias with a constant step on non-IID data, which shrinks
    geometrically with R. Stores two vectors (s, and one for the gossip); sends R vectors to each neighbour per phase.
    Any optimizer may take the step; its state stays local.
    Where shares pi_i of the examples differ, g_i is multiplied by N pi_i, so that every example counts the same.
    Reference: Yuan et al., Revisiting Optimal Convergence Rate for Smooth and Non-convex Stochastic Decentralized
    Optimization, NeurIPS 2022.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="mg-dsgd", help="gradient accumulation, then rounds of accelerated gossip", cites=("yuan2022revisiting",)
    )

    uses_gradient: ClassVar[bool] = True
    idle_steps: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("gathered", "gathered_steps")
    HEALTH: ClassVar[tuple[str, ...]] = ("spectral_gap", "contraction")

    topology: Topology = option(Ring(), help=STATIC)
    rounds: int | None = option(
        None, help="R, rounds after each phase; by default 1/2 ln(n) / sqrt(1 - lambda)", least=1
    )
    gossip: str = option("accelerated", help="constant eta, Chebyshev weights, or none (eta = 0)", choices=KINDS)

    def needs(self) -> Needs:
        return Needs(due_before_step=True, static_graph=True, drops=True)

    def takes_wires(self, size: int) -> tuple[str, str]:
        if self.topology.drop:
            return super().takes_wires(size)
        return "dense", "accelerated gossip amplifies what a message leaves out"

    def check_world(self, size: int) -> None:
        GossipPlan.make(self.topology.on(size), self.gossip, self.rounds, type(self).__name__)

    def init_state(self) -> None:
        graph = self.agreed_graph()
        self.plan = GossipPlan.make(graph, self.gossip, self.rounds, type(self).__name__)
        self.start_gossip(graph, weighted=False)
        self.gathered = torch.zeros_like(self.flat.x)
        self.gathered_steps = 0
        self.scratch = torch.empty_like(self.gathered)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> StepPlan:
        assert g is not None
        self.weigh(g)
        due = self.context.clock.due
        self.gathered_steps = accumulate(self.gathered, self.gathered_steps, g, due=due)
        return StepPlan(optimize=due)

    def after_step(self, x: torch.Tensor) -> None:
        gossip(self.mixing, self.plan, x, self.scratch)

    @property
    def contraction(self) -> float:
        return self.plan.contraction

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        if not due:
            return 0, 0
        rounds = GossipPlan.make(self.topology.on(size), self.gossip, self.rounds, type(self).__name__).rounds
        return gossip_cost(self.topology, model, rank, size, round, rounds=rounds)
