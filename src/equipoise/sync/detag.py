from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.errors import UserError
from ..core.method import Metadata, option
from ..core.vector import ModelSize
from ..topology.base import Topology
from ..topology.ring import Ring
from .accelerated import FITTED, KINDS, GossipPlan, paced
from .base import Needs, StepPlan
from .corrected_steps import CorrectedSteps
from .frozen_phases import FrozenPhases
from .gossip import STATIC, Gossip
from .mixing import gossip_cost


@dataclass
class DeTAG(Gossip):
    """Gradient tracking with accelerated gossip: R rounds after every step, or after a period of H steps.

        H times:         x_i <- x_i - a (g_i(x_i) + c_i)
        then R rounds:   z_i = the mean of these H directions
                         c_i <- c_i - z_i + (P_R z)_i;   x_i <- (P_R x)_i

    P_R is R rounds of accelerated gossip, the optimizer takes the steps. With H = 1, z is the tracker y of DSGT. The
    corrections c sum to zero over workers, so a constant step reaches the optimum of the mean on non-IID data. R is the
    least number of rounds that leave at most 0.4 of any disagreement: it grows as 1 / sqrt(gap). The rounds use the
    whole spectrum of W (`gossip="fitted"`), so a slack graph costs no more. With a period of R steps it sends one
    message per step on average, as DSGT does. On a described cluster, where neither R nor the period is given, and R
    rounds take more than eight times as long as a step, H is 2.
    Stores two vectors (c and z), with R > 1 two more (the displacement of x and z by a round), and sends R messages of
    2 d to each neighbour per period. The step goes through the user's optimizer. Near the optimum all workers have the
    same g + c, so momentum, Adam and weight decay act as on one worker. Corrections change by differences between two
    workers, so that their mean stays zero to rounding, without re-centring.

    `frozen=True` is the method of the paper, which optimises the number of rounds for a large batch: R gradients at a
    frozen model, one round after each, then one step. y is one phase stale: keep the step below 1 / L. With `overlap`
    its communication overlaps with the gradient computation. Stores six vectors; with momentum it is DeTAGM. Its R is
    1/2 ln max(n, h) / sqrt(1 - lambda); h = zeta_0^2 T / (Delta L) is the paper's term for heterogeneous data, with
    zeta_0^2 = 1/n sum_i ||grad f_i - grad f||^2 at the start, T steps, and Delta the distance of f from its minimum.
    Where shares pi_i of the examples differ, g_i is multiplied by N pi_i, so that every example counts the same.
    Reference: Lu and De Sa, Optimal Complexity in Decentralized Training, ICML 2021; JMLR 24(93), 2023. The corrected
    steps are those of Liu et al., Decentralized Gradient Tracking with Local Steps, Optimization Methods and Software
    2024.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="detag",
        help="gradient tracking with rounds of accelerated gossip; exact, for sparse graphs and non-IID data",
        cites=("lu2021optimal", "lu2023decentralized", "liu2011accelerated", "liu2024decentralized"),
    )

    uses_gradient: ClassVar[bool] = True
    idle_steps: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("kept",)
    vectors: ClassVar[int] = 2
    HEALTH: ClassVar[tuple[str, ...]] = ("tracker_gap", "spectral_gap", "phase", "contraction")

    topology: Topology = option(Ring(), help=STATIC)
    rounds: int | None = option(
        None,
        help="R; by default what leaves 0.4 of the disagreement, or with frozen 1/2 ln(n) / sqrt(1 - lambda)",
        least=1,
    )
    gossip: str = option(
        "auto",
        help="weights of the rounds: fitted to the spectrum, Chebyshev's, constant (accelerated) or none (plain); "
        "by default fitted, with frozen accelerated",
        choices=("auto", FITTED, *KINDS),
    )
    frozen: bool = option(False, help="the paper's method: R gradients at a frozen model, one round after each")
    heterogeneity: float = option(
        1.0,
        help="h = zeta_0^2 T / (Delta L): more rounds where it exceeds the number of workers; needs frozen",
        least=1,
    )
    overlap: bool = option(False, help="overlap communication with the gradient computation; needs frozen")

    def check(self) -> None:
        if self.overlap and not self.frozen:
            raise UserError(
                "DeTAG: overlap needs a model that stays as it is while messages travel: pass frozen=True with it"
            )

        if self.heterogeneity > 1 and (not self.frozen or self.rounds is not None):
            raise UserError(
                "DeTAG: heterogeneity decides on the rounds of frozen=True: pass that with it, and leave rounds out"
            )

    def needs(self) -> Needs:
        return Needs(every_step=self.frozen, static_graph=True, drops=True)

    def takes_wires(self, size: int) -> tuple[str, str]:
        if self.topology.drop:
            return super().takes_wires(size)
        return "dense", "accelerated gossip amplifies what a message leaves out"

    def check_world(self, size: int) -> None:
        self._plan(self.topology.on(size))

    def suit(self, size: int, step: float, round: float) -> tuple[dict[str, Any], int] | None:
        if self.frozen or self.rounds is not None:
            return None
        rounds, period = paced(self._plan(self.topology.on(size)).rounds, step, round)
        return {"rounds": rounds}, period

    def sends_before_step(self) -> bool:
        return self.frozen and not self.overlap

    def init_state(self) -> None:
        graph = self.agreed_graph()
        self.plan = self._plan(graph)
        self.start_gossip(graph, weighted=False, stretch=self.plan.stretch)
        self.scheme: CorrectedSteps | FrozenPhases
        if self.frozen:
            self.scheme = FrozenPhases(self.flat, self.mixing, self.plan, self.context.clock, overlap=self.overlap)
        else:
            self.scheme = CorrectedSteps(self.flat, self.mixing, self.plan)

    @property
    def kept(self) -> dict[str, Any]:
        """What the scheme keeps from step to step, by name."""
        return {name: getattr(self.scheme, name) for name in self.scheme.STATE}

    @kept.setter
    def kept(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self.scheme, name, value)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> StepPlan:
        assert g is not None
        self.weigh(g)
        return self.scheme.before_step(x, g)

    def after_step(self, x: torch.Tensor) -> None:
        self.scheme.after_step(x)

    def sent_with_model(self) -> dict[str, Any]:
        return self.scheme.sent_with_model()

    def restart(self, x: torch.Tensor, common: torch.Tensor, *, replaced: bool) -> None:
        self.mixing.drop()
        self.scheme.restart()

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        if not due:
            return 0, 0
        rounds = 1 if self.frozen else self._plan(self.topology.on(size)).rounds
        return gossip_cost(self.topology, model, rank, size, round, rounds=rounds, vectors=self.vectors)

    def _plan(self, graph: Topology) -> GossipPlan:
        kind = self.gossip
        if kind == "auto":
            kind = "accelerated" if self.frozen else FITTED
        return GossipPlan.make(graph, kind, self.rounds, type(self).__name__, self.heterogeneity)

    @property
    def tracker_gap(self) -> float:
        """||mean(y) - mean(gradients)||: rounding error only."""
        return self.context.island.norm(self.context.comm.mean(self.scheme.imbalance().clone()))

    @property
    def phase(self) -> int:
        return self.plan.rounds

    @property
    def contraction(self) -> float:
        return self.plan.contraction
