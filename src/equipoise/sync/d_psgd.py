from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.errors import UserError
from ..core.method import Metadata, option
from .base import Needs
from .gossip import Gossip


@dataclass
class DPSGD(Gossip):
    """Decentralised parallel SGD: every worker averages its model with its neighbours'.

        combine then adapt:   x_i <- sum_j W_ij x_j - a g_i(x_i)
        adapt then combine:   x_i <- sum_j W_ij (x_j - a g_j(x_j))

    Stores only the messages it receives, sends one vector to each neighbour per round. With a constant step and non-IID
    data it stops at a distance from the optimum proportional to the step. Any optimizer may take the local step; its
    state stays local. With combine = "before", communication may overlap with the computation of the gradient.
    Where shares pi_i of the examples differ, W_ij min(1, pi_j / pi_i) conserves the mean weighted by them.
    Reference: Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NeurIPS 2017.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="d-psgd", help="models averaged with the neighbours' (gossip)", cites=("lian2017can",)
    )

    combine: str = option("after", help="mix before or after the optimizer step", choices=("before", "after"))
    overlap: bool = option(False, help="overlap communication with the gradient computation; needs combine = before")

    def check(self) -> None:
        if self.overlap and self.combine != "before":
            raise UserError(
                "DPSGD: overlap needs models that are known before the gradient: pass combine='before' with it"
            )

    def needs(self) -> Needs:
        # With overlap the model of every step is in flight during the gradient computation of the next one.
        return Needs(every_step=self.overlap, due_before_step=self.combine == "before")

    def sends_before_step(self) -> bool:
        return self.combine == "before" and not self.overlap

    def init_state(self) -> None:
        self.start_gossip(self.agreed_graph(), weighted=True)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        if self.combine == "after" or not self.context.clock.due:
            return
        # Nothing is in flight at the first step and after a checkpoint: x itself is the message.
        if not self.mixing.in_flight:
            self.mixing.begin(x)
        self.mixing.end(x, x)

    def after_step(self, x: torch.Tensor) -> None:
        if self.combine == "after":
            self.mixing.mix(x)

    def depart(self, x: torch.Tensor) -> None:
        if self.overlap and not self.mixing.in_flight:
            self.mixing.begin(x, copy=True)  # an evaluation may write other parameters to x meanwhile
