from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.errors import UserError
from ..core.method import option
from ..topology.base import Topology
from ..topology.ring import Ring
from .base import Sync
from .mixing import WIRES, Mixing, agree, gossip_cost, mixing_gap
from .shares import BY, HELP


@dataclass
class DPSGD(Sync):
    """Decentralised parallel SGD: every worker averages its model with its neighbours'.

        combine then adapt:   x_i <- sum_j W_ij x_j - a g_i(x_i)
        adapt then combine:   x_i <- sum_j W_ij (x_j - a g_j(x_j))

    Stores nothing but what arrives, sends one vector to each neighbour per round. With a constant step and workers
    whose data differ it stops at a distance from the optimum proportional to the step. Any optimizer may take the
    local step; its state stays local. Combining before the step may overlap: the models travel while the gradient is
    computed.
    Where shares pi_i of the examples differ, W_ij min(1, pi_j / pi_i) conserves the mean weighted by them.
    Reference: Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NeurIPS 2017.
    """

    HEALTH: ClassVar[tuple[str, ...]] = ("spectral_gap",)

    topology: Topology = option(Ring(), help="who talks to whom")
    combine: str = option("after", help="mix before or after the optimizer step", choices=("before", "after"))
    overlap: bool = option(False, help="let models travel while the gradient is computed; needs combine = before")
    wire: str = option("", help="dtype of the messages, that of the model if empty", choices=tuple(WIRES))
    weights: str = option("size", help=HELP, choices=BY)

    def check(self) -> None:
        if self.overlap and self.combine != "before":
            raise UserError("overlap needs models that are known before the gradient: pass combine='before' with it")
        # A model that is under way when the gradient is computed is the one of the step before.
        self.every_step = self.overlap  # type: ignore[misc]
        self.foresees = self.combine == "before"  # type: ignore[misc]

    def start(self) -> None:
        agree(self.context, self.topology, "D-PSGD")
        self.mixing = Mixing(self.context, self.topology, WIRES[self.wire], weights=self.weights)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        if self.combine == "after" or not self.context.clock.due:
            return
        # Nothing is under way at the first step and after a checkpoint: x itself is the message.
        if not self.mixing.under_way:
            self.mixing.begin(x)
        self.mixing.end(x, x)

    def after_step(self, x: torch.Tensor) -> None:
        if self.combine == "after":
            self.mixing.mix(x)
        elif self.overlap:
            self.mixing.begin(x, copy=True)  # an evaluation may put other parameters into x meanwhile

    def finish(self) -> None:
        """Wait for a round that is under way and forget it: the last one of a run is nobody's."""
        self.mixing.drop()

    @property
    def spectral_gap(self) -> float:
        return mixing_gap(self.mixing.topology, self.mixing.shares)

    def centre(self) -> torch.Tensor | None:
        return None

    def cost(self, elements: int, itemsize: int, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        return gossip_cost(self.topology, elements, itemsize, rank, size, round, self.wire) if due else (0, 0)
