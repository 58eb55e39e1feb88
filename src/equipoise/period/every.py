from __future__ import annotations

from dataclasses import dataclass

from ..core.clock import Clock
from ..core.method import option
from .base import Period


@dataclass
class Every(Period):
    """A round every H optimizer steps (not micro-batches): after steps H, 2H, 3H, ..."""

    steps: int = option(1, help="optimizer steps between rounds (H)", least=1)

    def start(self) -> None: ...

    def due(self, clock: Clock) -> bool:
        return (clock.step + 1) % self.steps == 0
