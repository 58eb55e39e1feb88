from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.clock import Clock
from ..core.errors import UserError
from ..core.method import Metadata, option
from .base import Period


@dataclass
class QSR(Period):
    """The quadratic synchronisation rule: the smaller the learning rate, the less frequent the rounds.

        H = max(base, floor((alpha / lr)^2))

    decided at the first of the H steps, from its learning rate. During warm-up H is `base`, because a small rate there
    does not mean that workers stay close. A rate that rises between two rounds counts as warm-up, and so do the first
    `warmup` steps, for a rate that rises in jumps. `most` bounds H where the rate goes to zero. All workers have the
    same rate, so they agree. Intended for decaying schedules (cosine, linear); with a constant rate H is constant. Good
    values of alpha are 2 to 4 times the peak rate. The last H is not shortened to the steps that remain: a round that
    only the end asks for would change a run that is resumed with more epochs.
    Reference: Gu, Lyu, Arora, Zhang, Huang, A Quadratic Synchronization Rule for Distributed Deep Learning, ICLR 2024.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="qsr", help="rounds become less frequent as the learning rate falls", cites=("gu2024quadratic",)
    )

    STATE: ClassVar[tuple[str, ...]] = ("began", "rate", "until")

    base: int = option(4, help="fewest optimizer steps between rounds", least=1)
    alpha: float = option(0.2, help="H is the square of alpha / learning rate", above=0)
    warmup: int = option(0, help="optimizer steps in which the learning rate rises", least=0)
    most: int = option(1000, help="most optimizer steps between rounds", least=1)

    def check(self) -> None:
        if self.most < self.base:
            raise UserError(f"most = {self.most} is below base = {self.base}: raise it")

    def init_state(self) -> None:
        self.began, self.rate = 0, 0.0  # the first step after the last round, and its learning rate
        self.until = 0  # the step that ends with the next round

    def due(self, clock: Clock) -> bool:
        if clock.step >= self.until:
            self.began, self.rate = clock.step, clock.lr
            self.until = clock.step + self.length(clock)
        elif clock.lr > self.rate:
            self.until = min(self.until, max(clock.step + 1, self.began + self.base))
        return clock.step + 1 == self.until

    def length(self, clock: Clock) -> int:
        """H, from the learning rate of the coming step."""
        if clock.step < self.warmup:
            return self.base
        if clock.lr <= 0:
            return self.most
        return max(self.base, int(min(self.most, (self.alpha / clock.lr) ** 2)))
