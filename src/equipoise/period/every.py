from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.clock import Clock
from ..core.method import Metadata, option
from .base import Period


@dataclass
class Every(Period):
    """A round every H optimizer steps (not micro-batches): after steps H, 2H, 3H, ..."""

    metadata: ClassVar[Metadata] = Metadata(name="every", help="a round every H optimizer steps")

    steps: int = option(1, help="optimizer steps between rounds (H)", least=1)

    def init_state(self) -> None: ...

    def at_every_step(self) -> bool:
        return self.steps == 1

    def due(self, clock: Clock) -> bool:
        return (clock.step + 1) % self.steps == 0
