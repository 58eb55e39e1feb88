"""When do workers talk?"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from ..clock import Clock
from ..method import Method


@dataclass
class Period(Method):
    """Decides, before each optimizer step, whether a round belongs to it. All workers decide alike."""

    @abstractmethod
    def due(self, clock: Clock) -> bool:
        """Does the step that follows `clock.step` finished ones end with a round?"""
