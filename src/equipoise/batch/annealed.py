from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import ClassVar

from ..core.errors import UserError
from ..core.foreseen import DECAY_HELP, DECAYS, EPOCHS_HELP, foreseen
from ..core.method import Metadata, option
from .base import Batch
from .lr_scale import SCALINGS, chosen_scaling, gain

_GRID = 500  # points of the run at which the budget is added up


@dataclass
class Annealed(Batch):
    """A budget of rounds as the target: batches grow as the learning rate decays, and the run takes that many rounds.

        b(t) = c start d(t)^-power        d: the decay of the learning rate, 1 at its peak; t: part of the samples taken
        c:  the mean over the run of start / b(t) is `rounds`, with b rounded and between start and most

    The learning rate is multiplied by b / start with SGD and by its square root with other optimizers (`scale_lr`).
    Then lr / b, which sets the noise of the steps, decays as it would with batches of `start`, and the largest rates
    are taken where a constant batch with as many rounds would take larger ones. If the error of a long step grows with
    the step, power = 1/2 makes the sum of errors smallest for a given number of steps; power = 1 keeps the rate
    constant and only grows batches, and power = 0 is a constant batch.

    Nothing is measured and nothing is sent: the size follows from the samples taken. `eq.train` knows the length, if
    it is given in epochs or samples, and the decay, if it comes from `--schedule`. Elsewhere say `epochs` and `decay`.
    Where the length is not known, or the rate does not decay, the batch is start / rounds throughout.
    Reference: Smith, Kindermans, Ying, Le, Don't Decay the Learning Rate, Increase the Batch Size, ICLR 2018;
    McCandlish, Kaplan, Amodei, An Empirical Model of Large-Batch Training, 2018 (arXiv 1812.06162), appendix D.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="annealed",
        help="fewer rounds and steps with SGD: grows as the learning rate decays, to a budget of rounds",
        cites=("smith2018dont", "mccandlish2018empirical"),
    )

    start: int = option(16, help="examples per step and worker that the learning rate was chosen for", least=1)
    rounds: float = option(
        1 / 3, help="of the rounds that batches of `start` would take, so many are taken", above=0, most=1
    )
    power: float = option(0.5, help="how batches follow the decay: 0 constant, 1 inversely", least=0, most=1)
    most: int | None = option(
        None, help="most examples per step and worker; five times the average batch if none", least=1
    )
    scale_lr: str = option(
        "auto", help="the learning rate with the batch; auto: linear for SGD, sqrt for others", choices=SCALINGS
    )
    epochs: float | None = option(None, help=EPOCHS_HELP, above=0)
    decay: str | None = option(None, help=DECAY_HELP, choices=DECAYS)

    def check(self) -> None:
        if self.most is not None and self.most * self.rounds < self.start:
            raise UserError(
                f"most = {self.most} is below {math.ceil(self.start / self.rounds)}, the average batch that takes "
                f"{self.rounds:.3g} of the rounds: raise it, or rounds"
            )

    def init_state(self) -> None:
        context = self.context
        average = self.start / self.rounds
        self.cap = self.most if self.most is not None else math.ceil(5 * average)
        self.forecast = foreseen(context, self.epochs, self.decay)
        self.scaling = chosen_scaling(self.scale_lr, context.optimizer)
        if self.forecast is None and context.rank == 0 and context.flat is not None:
            logging.getLogger("equipoise").warning(
                "batch annealed does not know how long the run is, so batches stay at %d: give its length in epochs or "
                "samples, and in a loop of your own the option epochs",
                round(average),
            )
        self.factor = self._solved()
        self._sizes: list[int] = []

    def sizes(self) -> list[int]:
        done = 0.0 if self.forecast is None else self.forecast.done(self.context.clock.consumed)
        size = self.size_at(done)
        if not self._sizes or self._sizes[0] != size:
            self._sizes = [size] * self.context.size
        return self._sizes

    def lr_gain(self, largest: float) -> float:
        return gain(self.scaling, largest / self.start, self.start, None)

    def size_at(self, done: float) -> int:
        """b(t)."""
        return self._rounded(self.factor * self._shape(done))

    def _rounded(self, size: float) -> int:
        return max(self.start, min(self.cap, round(size)))

    def _shape(self, done: float) -> float:
        """start d(t)^-power."""
        decay = 1.0 if self.forecast is None else self.forecast.decay(done)
        return self.start * math.pow(max(decay, 1e-6), -self.power)

    def _solved(self) -> float:
        """c, by bisection: the larger, the fewer the steps."""
        shapes = [self._shape((i + 0.5) / _GRID) for i in range(_GRID)]
        low, high = 1e-3, self.cap / self.start
        for _ in range(40):
            middle = math.sqrt(low * high)
            steps = sum(self.start / self._rounded(middle * shape) for shape in shapes) / _GRID
            low, high = (middle, high) if steps > self.rounds else (low, middle)
        return high
