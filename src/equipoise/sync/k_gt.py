from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..core.method import Metadata
from .gossip import Gossip
from .joint_vector import JointVector


@dataclass
class KGT(Gossip):
    """Gradient tracking with K local steps: a correction turns each worker's gradient towards the mean gradient.

        K times:      x_i <- x_i - a (g_i(x_i) + c_i)
        then a round: z_i = the mean of these K directions, (x_i before - x_i after) / (K a) for plain SGD
                      c_i <- c_i - z_i + sum_j W_ij z_j;   x_i <- sum_j W_ij x_j

    K is the period. The corrections sum to zero over workers at all times, so a constant step reaches the optimum of
    the mean on non-IID data, also with many local steps. (The paper's server step is 1 here.)
    Stores two vectors (c and the sum of the directions); model and z lie side by side in memory and go to each
    neighbour as one message of 2 d per round. Any optimizer may take the local steps: z averages the gradients that
    the optimizer received, not its updates, so corrections have the scale of gradients, and it is at rest only where
    g_i + c_i = 0. A worker without examples counts as one whose gradient is zero.
    Where shares pi_i of the examples differ, g_i is multiplied by N pi_i, so that every example counts the same.
    Reference: Liu et al., Decentralized Gradient Tracking with Local Steps, Optimization Methods and Software 2024.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="k-gt", help="gradient tracking with local steps; exact on non-IID data", cites=("liu2024decentralized",)
    )

    uses_gradient: ClassVar[bool] = True
    idle_steps: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("correction", "directions", "local_steps")
    vectors: ClassVar[int] = 2
    HEALTH: ClassVar[tuple[str, ...]] = ("correction_mean", "spectral_gap")

    def init_state(self) -> None:
        self.start_gossip(self.agreed_graph(), weighted=False)
        self.joint = JointVector(self.flat, len(self.flat), wide=True)  # [x | z]
        self.correction = torch.zeros_like(self.directions)
        self.local_steps = 0  # since the last round; counted because periods may vary

    @property
    def directions(self) -> torch.Tensor:
        """The sum of the directions since the last round; divided by their number it is z."""
        return self.joint.tail

    @directions.setter
    def directions(self, value: torch.Tensor) -> None:
        self.directions.copy_(value)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        assert g is not None
        self.weigh(g)
        self.directions.add_(g.add_(self.correction))
        self.local_steps += 1

    def after_step(self, x: torch.Tensor) -> None:
        z = self.directions.div_(self.local_steps)
        self.correction.sub_(z)
        self.joint.mix(self.mixing, x)
        self.correction.add_(z)
        z.zero_()
        self.local_steps = 0

    def sent_with_model(self) -> dict[str, Any]:
        return {"directions": self.directions}

    def restart(self, x: torch.Tensor, common: torch.Tensor, *, replaced: bool) -> None:
        self.correction.zero_()  # on all workers: corrections sum to zero

    @property
    def correction_mean(self) -> float:
        """||mean(c)||: rounding error only."""
        return self.context.island.norm(self.context.comm.mean(self.correction.clone()))
