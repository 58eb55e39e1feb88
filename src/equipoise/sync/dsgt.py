from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.method import Metadata
from .base import Needs
from .gossip import Gossip
from .joint_vector import JointVector


@dataclass
class DSGT(Gossip):
    """Gradient tracking: every worker tracks the mean gradient of all workers and gives it to its optimizer.

        y_i <- g_i                                         at the first step
        y_i <- sum_j W_ij y_j + g_i(x_i) - g_i(before)     later
        x_i <- sum_j W_ij (x_j - a y_j)

    The mean of y is the mean of g at all times, so a constant step reaches the optimum of the mean on non-IID data, on
    any graph that mixes. Stores two vectors (y and the previous gradient); model and tracker lie side by side in memory
    and go to each neighbour as one message of 2 d per step. Any optimizer may take the step with y as its gradient:
    all workers converge to the same y, so momentum and Adam act as on one worker.
    Where shares pi_i of the examples differ, g_i is multiplied by N pi_i, so that every example counts the same.
    Reference: Zhang and You, Decentralized Stochastic Gradient Tracking for Non-convex Empirical Risk Minimization,
    2019.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="dsgt",
        help="gossip of models and of trackers of the mean gradient; exact",
        cites=("zhang2019decentralized",),
    )

    uses_gradient: ClassVar[bool] = True
    idle_steps: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("started", "tracker", "gradient_before")
    vectors: ClassVar[int] = 2
    HEALTH: ClassVar[tuple[str, ...]] = ("tracker_gap", "spectral_gap")

    def needs(self) -> Needs:
        return Needs(every_step=True)

    def init_state(self) -> None:
        self.start_gossip(self.agreed_graph(), weighted=False)
        self.joint = JointVector(self.flat, len(self.flat), wide=True)  # [x | y]
        self.gradient_before = torch.zeros_like(self.flat.x)
        self.started = False

    @property
    def tracker(self) -> torch.Tensor:
        return self.joint.tail

    @tracker.setter
    def tracker(self, value: torch.Tensor) -> None:
        self.tracker.copy_(value)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        assert g is not None
        self.weigh(g)
        if self.started:
            self.tracker.add_(g).sub_(self.gradient_before)
        else:
            # The previous gradient must be set together with y: were it zero, y would contain this g for ever.
            self.tracker, self.started = g, True
        self.gradient_before.copy_(g)
        g.copy_(self.tracker)

    def after_step(self, x: torch.Tensor) -> None:
        self.joint.mix(self.mixing, x)

    def sent_with_model(self) -> dict[str, Any]:
        return {"tracker": self.tracker}

    def restart(self, x: torch.Tensor, common: torch.Tensor, *, replaced: bool) -> None:
        self.started = False
        self.tracker.zero_()
        self.gradient_before.zero_()

    @property
    def tracker_gap(self) -> float:
        """||mean(y) - mean(g)||: rounding error only."""
        return self.context.island.norm(self.context.comm.mean(self.tracker - self.gradient_before))
