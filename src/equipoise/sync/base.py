"""What do workers exchange, and how do they combine it? Two hooks around `optimizer.step()`.

    g = gradient at x;  before_step(x, g);  optimizer.step();  if due: after_step(x)

Both change their vectors in place, and add to `context.clock.rounds` for each communication. `context.clock.due` says whether this step has a round, `context.clock.batch` how many
examples are in `g` (0 for a worker that has none left: its `g` is zero).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Method


@dataclass
class Sync(Method):
    uses_gradient: ClassVar[bool] = False  # does before_step want the flat gradient?
    every_step: ClassVar[bool] = False  # does it communicate at every step, whatever the period?
    foresees: ClassVar[bool] = False  # must it know before the step whether a round follows?
    idle_steps: ClassVar[bool] = False  # does a worker without examples take the optimizer step all the same?

    lands: ClassVar[bool] = False  # set in before_step: does a message arrive after this step, round or no round?

    @abstractmethod
    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        """Called at every step, before the optimizer. `g` is None unless `uses_gradient`."""

    @abstractmethod
    def after_step(self, x: torch.Tensor) -> None:
        """Called after the optimizer when a round is due, or when something `lands`."""

    def finish(self) -> None:
        """Called once after the last step: end what is still under way."""

    @abstractmethod
    def centre(self) -> torch.Tensor | None:
        """The centre variable, where the method has one."""

    @abstractmethod
    def cost(self, elements: int, itemsize: int, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        """Messages and payload bytes that worker `rank` sends in one step, with or without a round; `round` rounds came before."""
