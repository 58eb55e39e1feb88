from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.clock import Clock
from ..core.errors import UserError
from ..core.method import Metadata, option
from .base import Period


@dataclass
class Growing(Period):
    """Rounds that become rarer: the k-th one (from 0) ends H_k optimizer steps after the one before.

        H_k = min(most, floor(first (k + 1)^power))

    With power = 1 the number of rounds grows as the square root of that of steps. As the learning rate falls workers drift
    apart more slowly, and can be left alone for longer.
    Reference: Spiridonoff, Olshevsky, Paschalidis, Communication-efficient SGD: From Local SGD to One-Shot Averaging,
    NeurIPS 2021.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="growing", help="each round longer than the one before", cites=("spiridonoff2021communication",)
    )

    STATE: ClassVar[tuple[str, ...]] = ("until", "begun")

    first: int = option(1, help="optimizer steps in the first round", least=1)
    power: float = option(1.0, help="how fast rounds become longer", least=0)
    most: int = option(64, help="most optimizer steps in a round", least=1)

    def check(self) -> None:
        if self.most < self.first:
            raise UserError(f"most = {self.most} is below first = {self.first}: raise it")

    def init_state(self) -> None:
        self.until = 0  # the step after which the round under way takes place
        self.begun = 0  # rounds

    def due(self, clock: Clock) -> bool:
        if clock.step >= self.until:
            self.begun += 1
            self.until = clock.step + int(min(self.most, self.first * self.begun**self.power))
        return clock.step + 1 == self.until
