"""How does a vector travel? A wire C turns it into a message of fewer bytes, and a message back into a vector.

What is compressed is a difference, never a parameter: a gradient, the progress since a model that all workers hold, or
the distance to a replica that the receivers hold. What a message left out is sent later:

    e <- b e + d;   m = C(e);   e <- e - m          d the difference, m what all workers decode, e the residual

Averages of models can leave e in the worker's own model instead, which then is the difference of the next round.
`channel.py` does this for sums over all workers, `replicas.py` for gossip, `messages.py` for one sender. A wire only
fills in C, as a code for rows of a matrix (`rows.py`) or as a linear map whose images are summed (`linear.py`).
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch

from ..core.method import Method, option

if TYPE_CHECKING:
    from .channel import SumChannel
    from .messages import MessageChannel
    from .replicas import ReplicaChannel

FEEDBACK = "part of the residual that is kept for the next message: 1 error feedback, 0 none"
RESIDUAL = "of averages of models. feedback: sent with the next difference; model: left in the worker's model meanwhile"
RESIDUALS = ("feedback", "model")


class Piece(NamedTuple):
    """A part of a vector as a matrix; one column where it is no matrix."""

    start: int
    rows: int
    columns: int


class Draw(NamedTuple):
    """What the random choices of one message depend on, and nothing else: a resumed run draws them again."""

    seed: int
    rank: int
    channel: int
    number: int  # messages of the channel before this one
    stage: int = 0  # 1: the code of a sum

    def generator(self, device: torch.device, *, shared: bool = False) -> torch.Generator:
        """A stream of this worker's own, or one that is the same on all workers."""
        rank = -1 if shared else self.rank
        words = [self.seed, rank + 1, self.channel, self.number, self.stage]
        state = np.random.SeedSequence(words).generate_state(1, np.uint64)
        return torch.Generator(device).manual_seed(int(state[0]))

    def source(self, device: torch.device) -> Callable[[], torch.Generator]:
        """This worker's stream, made at the first call: few messages need one."""
        return functools.cache(functools.partial(self.generator, device))


@dataclass
class Wire(Method):
    """Final here: the channels and their state."""

    axis: ClassVar[str] = "wire"
    LATE: ClassVar[dict[str, type]] = {"reference": torch.Tensor, "residual": torch.Tensor}
    STATE: ClassVar[tuple[str, ...]] = ("initial", "channel_states")
    plain: ClassVar[bool] = False  # vectors travel as they are, and no channel is used
    dense: ClassVar[bool] = False  # every element is in every message, with at least 4 bits
    memoryless: ClassVar[bool] = False  # rounding of each element by itself: good enough without residual or replica

    feedback: float = option(1.0, help=FEEDBACK, least=0, most=1)
    residual: str = option("feedback", help=RESIDUAL, choices=RESIDUALS)

    @abstractmethod
    def collective(self) -> str:
        """How messages are summed over workers.

        all-to-all: chunks go to their ranks, are summed in float32 and coded again, and the codes go to all workers;
        all-gather: every message goes to every worker;
        all-reduce: messages are numbers that are summed as they are.
        """

    @abstractmethod
    def encode(
        self, vector: torch.Tensor, pieces: tuple[Piece, ...], draw: Draw, memory: Any
    ) -> tuple[torch.Tensor, Any]:
        """A message (bytes) for one sender's float32 vector, and the memory for the next one; None at first."""

    @abstractmethod
    def add_decoded(
        self, message: torch.Tensor, out: torch.Tensor, pieces: tuple[Piece, ...], draw: Draw, alpha: float = 1.0
    ) -> None:
        """out <- out + alpha times the decoded message; `draw` is that of the sender."""

    @abstractmethod
    def message_bytes(self, elements: int, pieces: tuple[Piece, ...]) -> int:
        """Bytes of a message for a vector of so many elements."""

    @abstractmethod
    def sum_cost(self, elements: int, pieces: tuple[Piece, ...], rank: int, size: int) -> tuple[int, int]:
        """Messages and bytes that `rank` sends for one sum over all workers, without the workers' weights."""

    # -- the state of a bound wire -------------------------------------------------------------------------------------
    def init_state(self) -> None:
        self.initial: torch.Tensor | None = None  # the model with which all workers began
        self.channels: dict[str, SumChannel | ReplicaChannel | MessageChannel] = {}

    def start(self, x: torch.Tensor) -> None:
        """Called before the first step: differences are taken to this model until there is something better."""
        if self.initial is None:
            self.initial = x.detach().clone()

    def sums(self, name: str, *, feedback: bool = True, models: bool = False) -> SumChannel:
        """A channel for sums over all workers. `feedback = False` where what is summed is no increment.

        `models`: differences of models are summed, so that residuals may stay in the models.
        """
        from .channel import SumChannel

        in_model = models and feedback and self.residual == "model"
        channel = SumChannel(self, len(self.channels), feedback=feedback, in_model=in_model)
        self._add(name, channel)
        return channel

    def replicas(self, name: str, vectors: int, gamma: float, *, tracks: bool) -> ReplicaChannel:
        """A channel for gossip of the model and `vectors - 1` more vectors.

        `tracks`: replicas follow what was sent, which needs the same graph in every round.
        """
        from .replicas import ReplicaChannel

        channel = ReplicaChannel(self, len(self.channels), vectors, gamma, tracks=tracks)
        self._add(name, channel)
        return channel

    def messages(self, name: str) -> MessageChannel:
        """A channel for messages from one worker to others."""
        from .messages import MessageChannel

        channel = MessageChannel(self, len(self.channels))
        self._add(name, channel)
        return channel

    def _add(self, name: str, channel: SumChannel | ReplicaChannel | MessageChannel) -> None:
        assert name not in self.channels, f"the channel {name!r} exists"
        self.channels[name] = channel

    def finish(self) -> None:
        """Discard sums in flight; all workers do so together."""
        for channel in self.channels.values():
            channel.drop()

    def forget(self, common: torch.Tensor | None = None) -> None:
        """Forget what messages left out and what receivers hold; with `common` on all workers, who hold this model."""
        self.finish()
        self.initial = self.initial if common is None else common.clone()
        for channel in self.channels.values():
            channel.forget()

    @property
    def channel_states(self) -> dict[str, Any]:
        return {name: channel.state() for name, channel in self.channels.items()}

    @channel_states.setter
    def channel_states(self, states: dict[str, Any]) -> None:
        for name, state in states.items():
            self.channels[name].load(state)


def pieces_of(shapes: tuple[tuple[int, ...], ...], start: int = 0, stop: int | None = None) -> tuple[Piece, ...]:
    """The tensors of a model between two elements, as matrices: the first dimension by all others.

    Of a matrix that is cut, the whole rows stay a matrix; the rest of the cut row counts as a vector.
    """
    pieces, place = [], 0
    for shape in shapes:
        elements = int(np.prod(shape, dtype=np.int64))
        first, last = max(place, start), place + elements if stop is None else min(place + elements, stop)
        if first < last:
            columns = elements // shape[0] if len(shape) > 1 and elements else 1
            whole = place + -(-(first - place) // columns) * columns  # the first row that is not cut
            rows = max(0, (last - whole) // columns)
            head, tail = min(whole, last), whole + rows * columns
            if head > first:
                pieces.append(Piece(first - start, head - first, 1))
            if rows:
                pieces.append(Piece(whole - start, rows, columns))
            if last > max(tail, head):
                pieces.append(Piece(max(tail, head) - start, last - max(tail, head), 1))
        place += elements
    return tuple(pieces)
