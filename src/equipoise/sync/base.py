"""What do workers exchange, and how do they combine it? Two hooks around `optimizer.step()`.

    g = gradient at x;  before_step(x, g);  optimizer.step();  if due: after_step(x)

Both change their vectors in place, and add to `context.clock.rounds` for each communication. `context.clock.due` says
whether this step has a round, `context.clock.batch` how many examples are in `g` (0 for a worker that has none left: its `g`
is zero).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from ..comm.piggyback import Piggyback
from ..core.method import Method
from ..core.vector import Flat, ModelSize


class StepPlan(NamedTuple):
    """What the loop does with a step, as the sync decided before it."""

    optimize: bool = True  # False: the optimizer rests, the model is frozen in this step
    message_arrives: bool = False  # a message arrives after this step: call `after_step` although no round is due


class Needs(NamedTuple):
    """What a method asks of the choices beside it. `config.fit` refuses what does not fit together."""

    every_step: bool = False  # it communicates at every step, whatever the period
    due_before_step: bool = False  # it must know before the step whether a round follows
    static_graph: bool = False  # the same connected graph with symmetric weights in every round
    push_sum: bool = False  # column sums of W are enough: the graph may be directed


@dataclass
class Sync(Method):
    axis: ClassVar[str] = "sync"
    uses_gradient: ClassVar[bool] = False  # does before_step want the flat gradient?
    idle_steps: ClassVar[bool] = False  # does a worker without examples take the optimizer step all the same?

    @abstractmethod
    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> StepPlan | None:
        """Called at every step, before the optimizer. `g` is None unless `uses_gradient`. None is `StepPlan()`."""

    @abstractmethod
    def after_step(self, x: torch.Tensor) -> None:
        """Called after the optimizer when a round is due, or when a message arrives."""

    @abstractmethod
    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        """Messages and payload bytes that worker `rank` sends in one step, with or without a round; `round` rounds came before."""

    @property
    def flat(self) -> Flat:
        """The model as a vector."""
        assert self.context.flat is not None
        return self.context.flat

    # -- hooks that most methods leave as they are ---------------------------------------------------------------------
    def needs(self) -> Needs:
        """What this method, with its options, asks of the other choices."""
        return Needs()

    def averages(self) -> str:
        """What a round gives the mean of, for a batch rule that measures it: "gradient", "parameters", or neither ("")."""
        return ""

    def carry(self, piggyback: Piggyback | None) -> None:
        """What the sums of the coming step take along. A sync without sums ignores it; the batch rule then sends it itself."""

    def check_graph(self, size: int) -> None:
        """Refuse a topology that does not suit this method on so many workers."""

    def mean_shares(self) -> list[float]:
        """The workers' weights in the mean model; empty where all count alike."""
        return []

    def centre(self) -> torch.Tensor | None:
        """The centre variable, where the method has one."""
        return None

    def finish(self) -> None:
        """Called once after the last step: complete or drop what is still in flight."""
