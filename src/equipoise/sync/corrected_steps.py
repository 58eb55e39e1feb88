"""DeTAG's default: the model moves at every step, and a round of accelerated gossip after another follows."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ..core.vector import Flat
from .accelerated import GossipPlan
from .base import StepPlan
from .joint_vector import JointVector
from .mixing import Mixing


class CorrectedSteps:
    """H steps with corrected gradients, then R rounds on the model and on z, the mean of their directions.

    The correction changes by the displacement of z, a sum of differences between two workers. These cancel exactly, so
    that corrections sum to zero without being re-centred, whatever the precision.
    """

    STATE: ClassVar[tuple[str, ...]] = ("correction", "directions", "local_steps")

    def __init__(self, flat: Flat, mixing: Mixing, plan: GossipPlan):
        self.mixing, self.plan = mixing, plan
        self.joint = JointVector(flat, len(flat), wide=True)  # [x | z]
        self.directions = torch.zeros_like(self.joint.tail)  # the sum of g + c since the last rounds
        self.correction = torch.zeros_like(self.directions)
        self.displacement = torch.zeros_like(self.joint.buffer)  # of [x | z], by the last round
        self.local_steps = 0  # since the last rounds; counted because periods may vary

    def before_step(self, x: torch.Tensor, g: torch.Tensor) -> StepPlan:
        self.directions.add_(g.add_(self.correction))
        self.local_steps += 1
        return StepPlan()

    def after_step(self, x: torch.Tensor) -> None:
        torch.div(self.directions, self.local_steps, out=self.joint.tail)
        with self.joint.holding(x) as both:
            displacement = self.displacement.zero_()
            for eta in self.plan.etas_of(self.mixing.topology, self.mixing.context.clock.rounds):
                self.mixing.begin(both)
                self.mixing.end_displacement(both, displacement.mul_(eta), scale=1.0 + eta)
                both.add_(displacement)
                self.correction.add_(displacement[len(x) :])
        self.directions.zero_()
        self.local_steps = 0

    def sent_with_model(self) -> dict[str, Any]:
        return {"directions": self.directions}

    def restart(self) -> None:
        self.correction.zero_()  # on all workers: corrections sum to zero

    def imbalance(self) -> torch.Tensor:
        """What sums to zero over workers: y - g = c."""
        return self.correction
