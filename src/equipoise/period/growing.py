from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.clock import Clock
from ..core.errors import UserError
from ..core.method import Metadata, option
from .base import Period


@dataclass
class Growing(Period):
    """Rounds become less frequent: the k-th one (from 0) follows H_k optimizer steps after the one before.

        H_k = min(most, floor(first (k + 1)^power))

    With power = 1 the number of rounds grows like the square root of the number of steps. As the learning rate falls,
    workers drift apart more slowly and can take more local steps.
    Reference: Spiridonoff, Olshevsky, Paschalidis, Communication-efficient SGD: From Local SGD to One-Shot Averaging,
    NeurIPS 2021.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="growing", help="more steps between rounds each time", cites=("spiridonoff2021communication",)
    )

    STATE: ClassVar[tuple[str, ...]] = ("until", "begun")

    first: int = option(1, help="optimizer steps before the first round", least=1)
    power: float = option(1.0, help="how fast the number of steps between rounds grows", least=0)
    most: int = option(64, help="most optimizer steps between rounds", least=1)

    def check(self) -> None:
        if self.most < self.first:
            raise UserError(f"most = {self.most} is below first = {self.first}: raise it")

    def init_state(self) -> None:
        self.until = 0  # the step that ends with the next round
        self.begun = 0  # rounds so far, the coming one included

    def due(self, clock: Clock) -> bool:
        if clock.step >= self.until:
            self.begun += 1
            self.until = clock.step + int(min(self.most, self.first * self.begun**self.power))
        return clock.step + 1 == self.until
