"""When do workers communicate?"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ..core.clock import Clock
from ..core.method import Method


@dataclass
class Period(Method):
    """Decides for each optimizer step whether a round belongs to it.

    In lockstep all workers decide alike, before the step. Otherwise workers are asynchronous and each one decides after
    its step: then rounds are the only points at which all workers synchronise.
    """

    axis: ClassVar[str] = "period"

    lockstep: ClassVar[bool] = True  # do all workers take the same number of steps between rounds?

    def at_every_step(self) -> bool:
        """Does every step end with a round?"""
        return False

    @abstractmethod
    def due(self, clock: Clock) -> bool:
        """Does the step that follows `clock.step` finished ones end with a round?"""
