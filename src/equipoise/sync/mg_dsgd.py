from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import option
from ..topology.base import Topology
from ..topology.ring import Ring
from .accelerated import KINDS, Plan, gossip
from .base import Sync
from .mixing import WIRES, Mixing, agree, gossip_cost
from .shares import BY, HELP, weigh_gradient


@dataclass
class MGDSGD(Sync):
    """Multiple-gossip DSGD: gradients gathered at a frozen model, one step, then R rounds of accelerated gossip.

        s_i <- mean of g_i(x_i) over the steps of a period
        x_i <- AG_R(x - a s)_i

    A period of H steps is one phase: the model moves at its last step only. The paper's choice is H = R. Without a
    tracker it sends half of what DeTAG does, but keeps a bias with a constant step where data differ, which shrinks
    geometrically with R. Stores two vectors (s, and one to gossip with); sends R vectors to each neighbour per phase.
    Any optimizer may take the step; its state stays local.
    Where shares pi_i of the examples differ, g_i is taken times N pi_i, so that every example counts the same.
    Reference: Yuan et al., Revisiting Optimal Convergence Rate for Smooth and Non-convex Stochastic Decentralized
    Optimization, NeurIPS 2022.
    """

    uses_gradient: ClassVar[bool] = True
    foresees: ClassVar[bool] = True
    idle_steps: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("gathered", "gathered_steps")
    HEALTH: ClassVar[tuple[str, ...]] = ("spectral_gap", "contraction")

    topology: Topology = option(Ring(), help="who talks to whom; the same symmetric graph in every round")
    rounds: int | None = option(
        None, help="R, rounds after each phase; by default 1/2 ln(n) / sqrt(1 - lambda)", least=1
    )
    gossip: str = option("accelerated", help="constant eta, Chebyshev's, or none (eta = 0)", choices=KINDS)
    wire: str = option("", help="dtype of the messages, that of the model if empty", choices=tuple(WIRES))
    weights: str = option("size", help=HELP, choices=BY)

    def start(self) -> None:
        assert self.context.flat is not None
        graph = agree(self.context, self.topology, "MG-DSGD", static=True)
        self.plan = Plan.make(graph, self.gossip, self.rounds, "MG-DSGD")
        self.mixing = Mixing(self.context, self.topology, WIRES[self.wire])
        self.gathered = torch.zeros_like(self.context.flat.x)
        self.gathered_steps = 0
        self.spare = torch.empty_like(self.gathered)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        assert g is not None
        weigh_gradient(self.context, self.weights, g)
        clock = self.context.clock
        self.gathered.add_(g)
        self.gathered_steps += 1
        clock.hold = not clock.due
        if clock.due:
            torch.div(self.gathered, self.gathered_steps, out=g)
            self.gathered.zero_()
            self.gathered_steps = 0

    def after_step(self, x: torch.Tensor) -> None:
        gossip(self.mixing, self.plan, x, self.spare)

    @property
    def spectral_gap(self) -> float:
        return self.mixing.topology.spectral_gap()

    @property
    def contraction(self) -> float:
        return self.plan.contraction

    def centre(self) -> torch.Tensor | None:
        return None

    def cost(self, elements: int, itemsize: int, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        if not due:
            return 0, 0
        rounds = Plan.make(self.topology.on(size), self.gossip, self.rounds, "MG-DSGD").rounds
        messages, bytes = gossip_cost(self.topology, elements, itemsize, rank, size, round, self.wire)
        return rounds * messages, rounds * bytes
