from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.clock import Clock
from ..core.method import Metadata, option
from .base import Period


@dataclass
class PostLocal(Period):
    """A round at every one of the first `switch` optimizer steps, every H steps from then on.

    Early, while gradients still change fast, the periodic average with plain SGD is then data-parallel training; later,
    local steps save rounds and tend to find flatter minima.
    Reference: Lin, Stich, Patel, Jaggi, Don't Use Large Mini-batches, Use Local SGD, ICLR 2020.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="post-local", help="every step at first, then every H steps", cites=("lin2020dont",)
    )

    switch: int = option(100, help="optimizer steps with a round each", least=0)
    steps: int = option(8, help="optimizer steps between rounds after that (H)", least=1)

    def init_state(self) -> None: ...

    def due(self, clock: Clock) -> bool:
        return clock.step < self.switch or (clock.step + 1 - self.switch) % self.steps == 0
