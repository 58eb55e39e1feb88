from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.method import Metadata, option
from ..topology.base import Topology
from ..topology.ring import Ring
from .accelerated import KINDS, GossipPlan
from .base import Needs, StepPlan
from .gossip import STATIC, Gossip
from .wide import wide_zeros


@dataclass
class DeTAG(Gossip):
    """Gradient tracking with accelerated gossip in phases: optimal in the number of rounds, up to a logarithm.

    A phase is R steps at a frozen model x. Each of them
        adds a gradient:   s_i <- s_i + g_i(x_i) / R
        gossips:           one round of AG_R on the model and on the tracker, x~ and y~ (see `accelerated`)
    and the last one ends the phase:
        x_i <- x~_i - a y~_i        the optimizer's step from x~ with y~ as its gradient
        y_i <- y~_i + s_i - s_i(before),   s_i(before) <- s_i,   s_i <- 0,   x~_i <- x_i,   y~_i <- y_i

    The mean of y is the mean of the last phase's gradients, so it reaches the optimum of the mean on non-IID data. y is
    one phase stale: keep the step below 1 / L. The first phase only accumulates gradients.
    Stores six vectors ([x~ | y~] and its previous value, s and its previous value) and sends one message of 2 d to each
    neighbour per step. With `overlap` communication overlaps with the gradient computation. The update goes through
    the user's optimizer; with momentum it is DeTAGM. Near the optimum all workers have the same y, so momentum, Adam
    and weight decay act as on one worker.
    Where shares pi_i of the examples differ, g_i is multiplied by N pi_i, so that every example counts the same.
    Reference: Lu and De Sa, Optimal Complexity in Decentralized Training, ICML 2021; JMLR 24(93), 2023.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="detag",
        help="gradient tracking with accelerated gossip in phases; exact, for sparse graphs",
        cites=("lu2021optimal", "lu2023decentralized", "liu2011accelerated"),
    )

    uses_gradient: ClassVar[bool] = True
    idle_steps: ClassVar[bool] = True
    LATE: ClassVar[dict[str, type]] = {"first": int}
    STATE: ClassVar[tuple[str, ...]] = ("first", "gossiped", "gossiped_before", "gathered", "gathered_before")
    vectors: ClassVar[int] = 2
    HEALTH: ClassVar[tuple[str, ...]] = ("tracker_gap", "spectral_gap", "phase", "contraction")

    topology: Topology = option(Ring(), help=STATIC)
    rounds: int | None = option(None, help="R, steps in a phase; by default 1/2 ln(n) / sqrt(1 - lambda)", least=1)
    gossip: str = option("accelerated", help="constant eta, Chebyshev weights, or none (eta = 0)", choices=KINDS)
    overlap: bool = option(False, help="overlap communication with the gradient computation")

    def needs(self) -> Needs:
        return Needs(every_step=True, static_graph=True)

    def takes_wires(self, size: int) -> tuple[str, str]:
        return "dense", "accelerated gossip amplifies what a message leaves out"

    def check_world(self, size: int) -> None:
        GossipPlan.make(self.topology.on(size), self.gossip, self.rounds, type(self).__name__)

    def sends_before_step(self) -> bool:
        return not self.overlap

    def init_state(self) -> None:
        graph = self.agreed_graph()
        self.plan = GossipPlan.make(graph, self.gossip, self.rounds, type(self).__name__)
        self.start_gossip(graph, weighted=False)
        x = self.flat.x
        self.elements = x.numel()
        self.first: int | None = None  # the step at which the first phase began
        self.gossiped = wide_zeros(x, 2 * self.elements)  # [x~ | y~]
        self.gossiped_before = torch.zeros_like(self.gossiped)
        self.gathered = wide_zeros(x)
        self.gathered_before = wide_zeros(x)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> StepPlan:
        assert g is not None
        self.weigh(g)
        clock = self.context.clock
        if self.first is None:
            self.first = clock.step
            self._begin_phase(x)
        steps = clock.step - self.first
        self._round(steps % self.plan.rounds)
        self.gathered.add_(g, alpha=1.0 / self.plan.rounds)
        if self._last:
            x.copy_(self.gossiped[: self.elements])
            g.copy_(self.gossiped[self.elements :])
        # During the first phase there is no tracker yet, so the model is not updated.
        return StepPlan(optimize=self._last and steps >= self.plan.rounds)

    def after_step(self, x: torch.Tensor) -> None:
        if self._last:
            self.gossiped[self.elements :].add_(self.gathered).sub_(self.gathered_before)
            self.gathered, self.gathered_before = self.gathered_before.zero_(), self.gathered
            self._begin_phase(x)

    def depart(self, x: torch.Tensor) -> None:
        if self.overlap and not self.mixing.in_flight:
            self.mixing.begin(self.gossiped)

    def sent_with_model(self) -> dict[str, Any]:
        return {"gossiped": self.gossiped} | ({"gathered": self.gathered} if self.overlap else {})

    def restart(self, x: torch.Tensor, common: torch.Tensor, *, replaced: bool) -> None:
        self.mixing.drop()
        self.first = None  # the next step begins the first phase
        for vector in (self.gossiped, self.gossiped_before, self.gathered, self.gathered_before):
            vector.zero_()

    def _begin_phase(self, x: torch.Tensor) -> None:
        self.gossiped[: self.elements].copy_(x)
        self.gossiped_before.copy_(self.gossiped)

    def _round(self, number: int) -> None:
        """z_{r+1} = (1 + eta) W z_r - eta z_{r-1}, written over z_{r-1}."""
        eta = self.plan.etas[number]
        if not self.mixing.in_flight:  # without overlap, at the first step, and after a checkpoint
            self.mixing.begin(self.gossiped)
        self.mixing.end(self.gossiped, self.gossiped_before, scale=1.0 + eta, keep=-eta)
        self.gossiped, self.gossiped_before = self.gossiped_before, self.gossiped

    @property
    def _last(self) -> bool:
        """Is this the last step of a phase? Also where none has begun."""
        return self.first is None or (self.context.clock.step - self.first + 1) % self.plan.rounds == 0

    @property
    def tracker_gap(self) -> float:
        """||mean(y) - mean(gradients of the last phase)||: rounding error only."""
        return float(self.context.comm.mean(self.gossiped[self.elements :] - self.gathered_before).norm())

    @property
    def phase(self) -> int:
        return self.plan.rounds

    @property
    def contraction(self) -> float:
        return self.plan.contraction
