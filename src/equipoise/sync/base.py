"""What do workers exchange, and how do they combine it? Hooks around `optimizer.step()`.

    g = gradient at x;  before_step(x, g);  optimizer.step();  if due: after_step(x), ..., depart(x)

The first two change their vectors in place, and add to `context.clock.rounds` for each communication.
`context.clock.due` says whether this step has a round, `context.clock.batch` how many examples are in `g` (0 for a
worker without remaining examples: its `g` is zero).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from ..comm.piggyback import Piggyback
from ..core.method import Method
from ..core.vector import Flat, ModelSize

if TYPE_CHECKING:
    from .mixing import RoundLinks


class StepPlan(NamedTuple):
    """What the loop does in a step, as the sync decided before it."""

    optimize: bool = True  # False: no optimizer step, the model is frozen
    message_arrives: bool = False  # a message arrives after this step: call `after_step` even if no round is due
    alarm: bool = False  # the round has told all workers of one that is not sound, and has changed nothing else


class Needs(NamedTuple):
    """What a method requires of the other choices. `config.fit` refuses combinations that do not meet it."""

    every_step: bool = False  # it communicates at every step, whatever the period
    due_before_step: bool = False  # it must know before the step whether a round is due
    static_graph: bool = False  # the same connected graph with symmetric weights in every round
    drops: bool = False  # links of that graph may be down in some rounds
    repairs_graph: bool = False  # where W has an eigenvalue near -1 it mixes with (I + W) / 2 by itself
    undirected: bool = False  # links that go both ways, in every round
    push_sum: bool = False  # W needs column sums of 1 only: the graph may be directed


@dataclass
class Sync(Method):
    axis: ClassVar[str] = "sync"
    uses_gradient: ClassVar[bool] = False  # does before_step need the flat gradient?
    centre_state: ClassVar[str] = ""  # the name in STATE of the centre variable, where the method has one
    idle_steps: ClassVar[bool] = False  # does a worker without examples take the optimizer step too?
    tells: ClassVar[bool] = False  # does a round tell all workers, by `StepPlan.alarm`, of one that is not sound?
    draws_links: ClassVar[bool] = False  # are the links of a round drawn anew, also where the topology is static?
    in_flight: ClassVar[tuple[str, ...]] = ()  # names in STATE that wait for a message when they are read

    @abstractmethod
    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> StepPlan | None:
        """Called at every step, before the optimizer. `g` is None unless `uses_gradient`. None is `StepPlan()`."""

    @abstractmethod
    def after_step(self, x: torch.Tensor) -> None:
        """Called after the optimizer when a round is due, or when a message arrives."""

    @abstractmethod
    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        """Messages and payload bytes that `rank` sends in one step, if `due` with a round; `round` came before it."""

    def centre(self) -> torch.Tensor | None:
        """The centre variable, where the method has one."""
        return getattr(self, self.centre_state) if self.centre_state else None

    @property
    def flat(self) -> Flat:
        """The model as a vector."""
        assert self.context.flat is not None
        return self.context.flat

    # -- hooks with a default ------------------------------------------------------------------------------------------
    def needs(self) -> Needs:
        """What this method, with its options, requires of the other choices."""
        return Needs()

    def averages(self) -> str:
        """What a round averages, for a batch rule that measures it: "gradient", "parameters", or neither ("")."""
        return ""

    def carry(self, piggyback: Piggyback | None) -> None:
        """Send this with the sums of the next step. A sync without sums ignores it: the batch rule then sends it."""

    def equal_after_round(self) -> bool:
        """Do all workers hold the same model, to the bit, when a round has ended?"""
        return False

    def links(self, round: int) -> RoundLinks | None:
        """Whom this worker sends to and receives from in a round, where it is not all of them."""
        return None

    def check_graph(self, size: int) -> None:
        """Refuse a topology, or groups, that do not suit this method on so many workers."""

    def takes_wires(self, size: int) -> tuple[str, str]:
        """Which wires besides float32: "all", "dense", "casts" or "none"; and why not more, for an error message."""
        return "none", "it sends its vectors as they are"

    def check_world(self, size: int) -> None:
        """Refuse options that do not suit so many workers: what `init_state` would refuse, before anything starts."""

    def suit(self, size: int, step: float, round: float) -> tuple[dict[str, Any], int] | None:
        """Options and a period for links on which one message to each neighbour takes `round` seconds, a step `step`.

        None where there is nothing to choose, or where the user has.
        """
        return None

    def mean_shares(self) -> list[float]:
        """The workers' weights in the mean model; empty for the plain mean."""
        return []

    def sent_with_model(self) -> dict[str, Any]:
        """What a round sends besides the model, as it is now, by name."""
        return {}

    def sends_before_step(self) -> bool:
        """Does a round send in `before_step` what is not known to be good yet? Else it sends in `after_step`."""
        return False

    def restart(self, x: torch.Tensor, common: torch.Tensor, *, replaced: bool) -> None:
        """A worker was left out and has taken over `common`, the others' model: go on without what it has lost.

        Called on all workers. What belongs together across workers (trackers, corrections) begins anew on all of them.
        replaced: this is that worker; its model is `common` and its own state that of another worker.
        """

    def depart(self, x: torch.Tensor) -> None:
        """Called before the next gradient is computed, if a round was due: send what may travel meanwhile.

        Workers that meet to log, evaluate or save have done so by then: their small messages do not queue behind it.
        """

    def finish(self) -> None:
        """Called once after the last step: complete or discard messages in flight."""
