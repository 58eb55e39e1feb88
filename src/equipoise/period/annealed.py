from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import ClassVar

from ..core.clock import Clock
from ..core.foreseen import DECAY_HELP, DECAYS, EPOCHS_HELP, foreseen
from ..core.method import Metadata, option
from .base import Period

_GRID = 500  # points of the run at which the budget is added up


@dataclass
class AnnealedPeriod(Period):
    """A budget of rounds as the target: rounds become rarer as the learning rate decays, and the run takes that many.

        1 / H(t) = min(1, c d(t)^power / steps)      d: the decay of the learning rate, 1 at its peak
        c:  the mean over the run of steps / H(t) is `rounds`, t being the part of the samples that is taken

    A round belongs to the step at which the sum of 1 / H over all steps reaches the next integer. Workers drift apart
    by about the learning rate times H between rounds: power = 1 keeps that constant, power = 2 is the quadratic rule
    of `qsr` with alpha found from the budget, and power = 0 a constant H = steps / rounds.

    Nothing is measured and nothing is sent. `eq.train` knows the length, if it is given in epochs or samples, and the
    decay, if it comes from `--schedule`. Elsewhere say `epochs` and `decay`. Where the length is not known, or the rate
    does not decay, H is steps / rounds throughout. The budget is that of steps of equal size: batches that grow too
    take their steps early, where rounds are frequent.
    Reference: Gu, Lyu, Arora, Zhang, Huang, A Quadratic Synchronization Rule for Distributed Deep Learning, ICLR 2024.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="annealed",
        help="rounds become rarer as the learning rate decays, to a budget of rounds",
        cites=("gu2024quadratic",),
    )

    STATE: ClassVar[tuple[str, ...]] = ("step", "before", "spent")

    steps: int = option(16, help="optimizer steps between rounds that the budget is compared with (H)", least=1)
    rounds: float = option(1 / 3, help="of the rounds of a constant H, so many are taken", above=0, most=1)
    power: float = option(1.0, help="how rounds follow the decay: 0 constant, 1 proportionally", least=0, most=2)
    epochs: float | None = option(None, help=EPOCHS_HELP, above=0)
    decay: str | None = option(None, help=DECAY_HELP, choices=DECAYS)

    def init_state(self) -> None:
        context = self.context
        self.forecast = foreseen(context, self.epochs, self.decay)
        if self.forecast is None and context.flat is not None and context.rank == 0:
            logging.getLogger("equipoise").warning(
                "period annealed does not know how long the run is, so rounds stay %.3g steps apart: give its length "
                "in epochs or samples, and in a loop of your own a sampler and the option epochs",
                self.steps / self.rounds,
            )
        self.factor = self._solved()
        self.step = -1  # the one that was asked about last
        self.before = self.spent = 0.0  # the sum of 1 / H up to that step, and with it

    def due(self, clock: Clock) -> bool:
        if clock.step != self.step:
            done = 0.0 if self.forecast is None else self.forecast.done(clock.consumed)
            self.step, self.before = clock.step, self.spent
            self.spent += self._frequency(self.factor * self._shape(done))
        # The small number absorbs the rounding errors of the sum.
        return math.floor(self.spent + 1e-9) > math.floor(self.before + 1e-9)

    def _shape(self, done: float) -> float:
        """d(t)^power."""
        return 1.0 if self.forecast is None else math.pow(max(self.forecast.decay(done), 0.0), self.power)

    def _frequency(self, size: float) -> float:
        """1 / H."""
        return min(1.0, size / self.steps)

    def _solved(self) -> float:
        """c, by bisection: the larger, the more rounds."""
        shapes = [self._shape((i + 0.5) / _GRID) for i in range(_GRID)]
        low, high = self.rounds, self.steps / max(min(shapes), 1e-9)
        for _ in range(60):
            middle = math.sqrt(low * high)
            taken = sum(self.steps * self._frequency(middle * shape) for shape in shapes) / _GRID
            low, high = (middle, high) if taken < self.rounds else (low, middle)
        return high
