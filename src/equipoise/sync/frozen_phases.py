"""DeTAG as its paper states it: R gradients at a frozen model, and one round of accelerated gossip after each."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ..core.clock import Clock
from ..core.vector import Flat
from .accelerated import GossipPlan
from .base import StepPlan
from .mixing import Mixing
from .wide import wide_zeros


class FrozenPhases:
    """A phase is R steps at a frozen model x. Each of them

        adds a gradient:   s_i <- s_i + g_i(x_i) / R
        gossips:           one round of AG_R on the model and on the tracker, x~ and y~
    and the last one ends the phase:
        x_i <- x~_i - a y~_i        the optimizer's step from x~ with y~ as its gradient
        y_i <- y~_i + s_i - s_i(before),   s_i(before) <- s_i,   s_i <- 0,   x~_i <- x_i,   y~_i <- y_i

    The first phase only accumulates gradients: there is no tracker yet.
    """

    STATE: ClassVar[tuple[str, ...]] = ("first", "gossiped", "gossiped_before", "gathered", "gathered_before")
    NEVER: ClassVar[int] = -1

    def __init__(self, flat: Flat, mixing: Mixing, plan: GossipPlan, clock: Clock, *, overlap: bool):
        self.mixing, self.plan, self.clock, self.overlap = mixing, plan, clock, overlap
        x = flat.x
        self.elements = x.numel()
        self.first = self.NEVER  # the step at which the first phase began
        self.gossiped = wide_zeros(x, 2 * self.elements)  # [x~ | y~]
        self.gossiped_before = torch.zeros_like(self.gossiped)
        self.gathered = wide_zeros(x)
        self.gathered_before = wide_zeros(x)

    def before_step(self, x: torch.Tensor, g: torch.Tensor) -> StepPlan:
        if self.first == self.NEVER:
            self.first = self.clock.step
            self._begin_phase(x)
        steps = self.clock.step - self.first
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
        if self.overlap:
            self.mixing.begin(self.gossiped)

    def sent_with_model(self) -> dict[str, Any]:
        return {"gossiped": self.gossiped} | ({"gathered": self.gathered} if self.overlap else {})

    def restart(self) -> None:
        self.first = self.NEVER  # the next step begins the first phase
        for vector in (self.gossiped, self.gossiped_before, self.gathered, self.gathered_before):
            vector.zero_()

    def imbalance(self) -> torch.Tensor:
        """What sums to zero over workers: the tracker minus the gradients of the last phase."""
        return self.gossiped[self.elements :] - self.gathered_before

    def _begin_phase(self, x: torch.Tensor) -> None:
        self.gossiped[: self.elements].copy_(x)
        self.gossiped_before.copy_(self.gossiped)

    def _round(self, number: int) -> None:
        """z_{r+1} = (1 + eta) W z_r - eta z_{r-1}, written over z_{r-1}."""
        eta = self.plan.etas_of(self.mixing.topology, self.clock.rounds - number)[number]
        if not self.mixing.in_flight:  # without overlap, at the first step, and after a checkpoint
            self.mixing.begin(self.gossiped)
        self.mixing.end(self.gossiped, self.gossiped_before, scale=1.0 + eta, keep=-eta)
        self.gossiped, self.gossiped_before = self.gossiped_before, self.gossiped

    @property
    def _last(self) -> bool:
        """Is this the last step of a phase? Also where none has begun."""
        return self.first == self.NEVER or (self.clock.step - self.first + 1) % self.plan.rounds == 0
