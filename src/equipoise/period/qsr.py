from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.clock import Clock
from ..core.errors import UserError
from ..core.method import Metadata, option
from .base import Period


@dataclass
class QSR(Period):
    """The quadratic synchronisation rule: the smaller the learning rate, the rarer the rounds.

        H = max(base, floor((alpha / lr)^2))

    decided when a round begins, from the learning rate of its first step. While the rate warms up H is `base`: a rate that is
    small at the start asks for the opposite. A rate that rises within a round is a warm-up, and so are the first
    `warmup` steps, for one that rises by leaps. `most` bounds H where the rate goes to zero. All workers have the same rate, so they agree. Made for schedules that decay (cosine, linear); with a
    constant rate H is constant. Good alphas lie near the peak rate times 2 to 4.
    Reference: Gu, Lyu, Arora, Zhang, Huang, A Quadratic Synchronization Rule for Distributed Deep Learning, ICLR 2024.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="qsr", help="rounds become rarer as the learning rate falls", cites=("gu2024quadratic",)
    )

    STATE: ClassVar[tuple[str, ...]] = ("began", "rate", "until")

    base: int = option(4, help="fewest optimizer steps in a round", least=1)
    alpha: float = option(0.2, help="H is the square of alpha / learning rate", above=0)
    warmup: int = option(0, help="optimizer steps in which the learning rate rises", least=0)
    most: int = option(1000, help="most optimizer steps in a round", least=1)

    def check(self) -> None:
        if self.most < self.base:
            raise UserError(f"most = {self.most} is below base = {self.base}: raise it")

    def init_state(self) -> None:
        self.began, self.rate = 0, 0.0  # the first step of the round under way, and the learning rate there
        self.until = 0  # the step after which the round under way takes place

    def due(self, clock: Clock) -> bool:
        if clock.step >= self.until:
            self.began, self.rate = clock.step, clock.lr
            self.until = clock.step + self.length(clock)
        elif clock.lr > self.rate:
            self.until = min(self.until, max(clock.step + 1, self.began + self.base))
        return clock.step + 1 == self.until

    def length(self, clock: Clock) -> int:
        """H of a round that begins now."""
        if clock.step < self.warmup:
            return self.base
        if clock.lr <= 0:
            return self.most
        return max(self.base, int(min(self.most, (self.alpha / clock.lr) ** 2)))
