from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata
from .gossip import Gossip


@dataclass
class KGT(Gossip):
    """Gradient tracking with K local steps: a correction turns each worker's gradient towards everybody's.

        K times:      x_i <- x_i - a (g_i(x_i) + c_i)
        then a round: z_i = the mean of these K directions, (x_i before - x_i after) / (K a) for plain SGD
                      c_i <- c_i - z_i + sum_j W_ij z_j;   x_i <- sum_j W_ij x_j

    K is the period. The corrections sum to zero over workers at all times, so a constant step reaches the optimum of
    the mean however much the workers' data differ, also with many local steps. (The paper's server step is 1 here.)
    Stores two vectors (c and the sum of the directions); model and z lie side by side in memory and go to each
    neighbour as one message of 2 d per round. Any optimizer may take the local steps: z is what it was given and not
    what it made of that, so corrections stay in the scale of gradients, and it rests only where g_i + c_i = 0.
    A worker without examples counts as one whose gradient is zero.
    Where shares pi_i of the examples differ, g_i is taken times N pi_i, so that every example counts the same.
    Reference: Liu et al., Decentralized Gradient Tracking with Local Steps, Optimization Methods and Software 2024.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="k-gt", help="gradient tracking with local steps; exact on unequal data", cites=("liu2024decentralized",)
    )

    uses_gradient: ClassVar[bool] = True
    idle_steps: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("correction", "directions", "taken")
    vectors: ClassVar[int] = 2
    HEALTH: ClassVar[tuple[str, ...]] = ("correction_mean", "spectral_gap")

    def init_state(self) -> None:
        self.start_gossip(self.agreed_graph(), weighted=False)
        self.elements = len(self.flat)
        self.both = self.flat.widen(self.elements)  # [x | z]
        self.correction = torch.zeros_like(self.directions)
        self.taken = 0  # local steps since the last round: not every period is regular

    @property
    def directions(self) -> torch.Tensor:
        """The sum of the directions since the last round, which becomes z."""
        return self.both[self.elements :]

    @directions.setter
    def directions(self, value: torch.Tensor) -> None:
        self.directions.copy_(value)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        assert g is not None
        self.weigh(g)
        self.directions.add_(g.add_(self.correction))
        self.taken += 1

    def after_step(self, x: torch.Tensor) -> None:
        assert x.data_ptr() == self.both.data_ptr(), "the model has left its place before the directions"
        z = self.directions.div_(self.taken)
        self.correction.sub_(z)
        self.mixing.mix(self.both)
        self.correction.add_(z)
        z.zero_()
        self.taken = 0

    @property
    def correction_mean(self) -> float:
        """||mean(c)||: rounding, and nothing else."""
        return float(self.context.comm.mean(self.correction.clone()).norm())
