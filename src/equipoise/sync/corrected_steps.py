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
        self.correction = torch.zeros_like(self.directions)
        self.displacement = torch.zeros_like(self.joint.buffer[: len(self.joint.buffer) if plan.rounds > 1 else 0])
        self.local_steps = 0  # since the last rounds; counted because periods may vary

    @property
    def directions(self) -> torch.Tensor:
        """The sum of g + c since the last rounds; divided by their number it is z. Stale without local steps."""
        return self.joint.tail

    @directions.setter
    def directions(self, value: torch.Tensor) -> None:
        self.directions.copy_(value)

    def before_step(self, x: torch.Tensor, g: torch.Tensor) -> StepPlan:
        g.add_(self.correction)
        if self.local_steps:
            self.directions.add_(g)
        else:
            self.directions = g
        self.local_steps += 1
        return StepPlan()

    def after_step(self, x: torch.Tensor) -> None:
        if self.local_steps > 1:
            self.directions.div_(self.local_steps)
        with self.joint.holding(x) as both:
            etas = self.plan.etas_of(self.mixing.topology, self.mixing.context.clock.rounds)
            for round, eta in enumerate(etas):
                self.mixing.begin(both)
                self._end_round(round, eta, both, len(x))
        self.local_steps = 0

    def _end_round(self, round: int, eta: float, both: torch.Tensor, split: int) -> None:
        """v <- eta v + (1 + eta) sum_j W_ij ([x | z]_j - [x | z]_i);  [x | z] <- [x | z] + v;  c <- c + v of z.

        v is kept from round to round only: zero before the first one, and not needed after the last one.
        """
        for block, displacement in self.mixing.displacements(both, both.dtype, scale=1.0 + eta):
            if round > 0:
                displacement.add_(self.displacement[block], alpha=eta)
            if round + 1 < self.plan.rounds:
                self.displacement[block].copy_(displacement)
            both[block].add_(displacement)
            if block.stop > split:
                of_z = slice(max(block.start, split) - split, block.stop - split)
                self.correction[of_z].add_(displacement[of_z.start - of_z.stop :])

    def sent_with_model(self) -> dict[str, Any]:
        return {"directions": self.directions}

    def restart(self) -> None:
        self.correction.zero_()  # on all workers: corrections sum to zero

    def imbalance(self) -> torch.Tensor:
        """What sums to zero over workers: y - g = c."""
        return self.correction
