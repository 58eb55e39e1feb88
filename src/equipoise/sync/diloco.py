from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..comm.fused_reduction import chunk
from ..core.errors import UserError
from ..core.method import Metadata, option
from ..core.vector import ModelSize
from .averaging import STATES, STATES_HELP, WEIGHTS, WEIGHTS_HELP, AveragesParameters
from .base import StepPlan
from .initial_model import copy_once
from .overlapped_mean import OverlappedMean, OverlappedProgress, overlapped_cost


@dataclass
class DiLoCo(AveragesParameters):
    """Local training with an outer optimizer: the progress of a round is the gradient of a Nesterov step.

        d = z - mean of all x,   u <- mu u + d,   z <- z - lr (d + mu u),   x <- z

    z is the model with which all workers began the round. Local steps usually use AdamW, hundreds per round. lr = 1
    and momentum = 0 is the periodic average, to the bit. Stores two vectors, sends what the periodic average sends.

    Streaming: with P `fragments` every round sends one P-th of the model, in turn, which bounds the size of a round;
    let the period be H / P. With a `delay` of t steps communication overlaps with t local steps, and the result is
    mixed with their progress, x <- alpha x + (1 - alpha) z. t must be shorter than the period. A message in flight
    when the run ends is dropped. A wire compresses x - z; what it leaves out waits in a residual or stays in the
    worker's model. With top-k, error feedback and momentum = 0 this is SparseLoCo: the residual replaces the momentum.
    Reference: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023 (arXiv
    2311.08105); Streaming DiLoCo with overlapping communication, 2025 (arXiv 2501.18512).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="diloco", help="Local SGD with an outer Nesterov step; fragments, overlap", cites=("douillard2023diloco",)
    )

    centre_state: ClassVar[str] = "anchor"
    LATE: ClassVar[dict[str, type]] = {"message": dict}
    STATE: ClassVar[tuple[str, ...]] = (
        "anchor",
        "momenta",
        "samples_at_last_round",
        "rounds_begun",
        "steps_left",
        "message",
    )
    COMMON: ClassVar[tuple[str, ...]] = ("anchor", "momenta", "rounds_begun")
    OWN: ClassVar[tuple[str, ...]] = ("samples_at_last_round",)

    in_flight: ClassVar[tuple[str, ...]] = ("message",)

    lr: float = option(0.7, help="outer learning rate", above=0)
    momentum: float = option(0.9, help="outer momentum", least=0, below=1)
    nesterov: bool = option(True, help="Nesterov momentum")
    fragments: int = option(1, help="parts of the model, one per round", least=1)
    delay: int = option(0, help="local steps that a message in flight overlaps with", least=0)
    alpha: float = option(0.0, help="weight of the local fragment when a delayed one arrives", least=0, below=1)
    weights: str = option("size", help=WEIGHTS_HELP, choices=WEIGHTS)
    state: str = option("local", help=STATES_HELP, choices=STATES)

    def check(self) -> None:
        if self.alpha and not self.delay:
            raise UserError(
                "DiLoCo: alpha mixes in the local steps during the delay, and there is none: pass delay=1 or more"
            )
        if self.state != "local" and (self.fragments > 1 or self.delay):
            raise UserError(
                f"DiLoCo: state={self.state!r} needs rounds of the complete model: omit fragments and delay"
            )

    def init_state(self) -> None:
        if self.fragments > len(self.flat):
            raise UserError(f"DiLoCo: fragments={self.fragments} and the model has {len(self.flat):,} parameters")
        self.start_averaging(self.weights, self.state)
        channel = self.averaging.channel
        self.overlapped = OverlappedMean(self.context) if channel is None else OverlappedProgress(channel)
        self.anchor: torch.Tensor | None = None  # z
        self.momenta = torch.zeros_like(self.flat.x)
        self.rounds_begun = 0  # decides which fragment is next
        self.steps_left = 0  # until the message in flight arrives
        self.arrives = False  # does it arrive in this step?

    @property
    def message(self) -> Any:
        return self.overlapped.state()

    @message.setter
    def message(self, state: Any) -> None:
        self.overlapped.load(state)

    def equal_after_round(self) -> bool:
        return self.fragments == 1 and self.delay == 0 and not self.averaging.leaves_residuals

    def averages(self) -> str:
        return "" if self.fragments > 1 or self.delay else "parameters"

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> StepPlan:
        self.anchor = copy_once(self.anchor, x)
        self.arrives = False
        if self.overlapped.in_flight:
            self.steps_left -= 1
            self.overlapped.advance(1.0 - self.steps_left / self.delay)
            self.arrives = self.steps_left == 0
        return StepPlan(message_arrives=self.arrives)

    def after_step(self, x: torch.Tensor) -> None:
        clock = self.context.clock
        assert self.anchor is not None
        if self.arrives:
            part = self._fragment(self.rounds_begun - 1)
            mean, weights = self.overlapped.end()
            clock.rounds += 1
            self.averaging.divide(mean, weights)
            if self.averaging.channel is not None:  # what travelled is the progress
                mean = self.anchor[part] + mean
            own = x[part].clone()
            progress = own - self.anchor[part] if self.averaging.leaves_residuals else None
            x[part] = mean
            self._outer(x, part)
            self.averaging.keep_unsent(x[part], progress)
            x[part].lerp_(own, self.alpha)
        if not clock.due:
            return
        part = self._fragment(self.rounds_begun)
        if self.delay == 0:
            self.averaging.average(x[part], self.anchor[part], part.start)
            self._outer(x, part)
            self.averaging.keep_unsent(x[part])
        elif self.overlapped.in_flight:
            raise UserError(f"DiLoCo: delay={self.delay} is not shorter than the period: lower it, or raise the period")
        else:
            progress = x[part] if self.averaging.channel is None else x[part] - self.anchor[part]
            self.overlapped.begin(progress, self.averaging.weight(), part.start)
            self.steps_left = self.delay
        self.rounds_begun += 1

    def _outer(self, x: torch.Tensor, part: slice) -> None:
        """The outer step on a fragment of `x`, which holds the mean of the workers."""
        assert self.anchor is not None
        x, anchor, momenta = x[part], self.anchor[part], self.momenta[part]
        moved = anchor.sub_(x)
        # z - lr (d + mu u), written as the mean plus a multiple of d: exact for lr = 1 without momentum.
        on_moved, on_momenta = (1 + self.momentum, self.momentum**2) if self.nesterov else (1.0, self.momentum)
        x.add_(moved, alpha=1 - self.lr * on_moved).sub_(momenta, alpha=self.lr * on_momenta)
        momenta.mul_(self.momentum).add_(moved)
        anchor.copy_(x)

    def _fragment(self, number: int) -> slice:
        return slice(*chunk(len(self.flat), self.fragments, number % self.fragments))

    def finish(self) -> None:
        self.overlapped.drop()

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        start, stop = chunk(model.elements, self.fragments, round % self.fragments)
        if not due:
            return 0, 0
        if self.delay:  # counted when it arrives
            return overlapped_cost(model, start, stop, rank, size)
        return self.average_cost(self.weights, model, rank, size, start, stop)
