from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..comm.fused_reduction import chunks
from ..comm.ledger import mean_cost
from ..comm.piggyback import Piggyback
from ..core.errors import UserError
from ..core.method import Metadata, option
from ..core.vector import ModelSize
from .averaging import STATES, WEIGHTS, Averaging, averaging_cost
from .base import StepPlan, Sync
from .overlapped_mean import Overlap


@dataclass
class DiLoCo(Sync):
    """Local training with an outer optimizer: what a round did is the gradient of a Nesterov step.

        d = z - mean of all x,   u <- mu u + d,   z <- z - lr (d + mu u),   x <- z

    z is the model with which all began the round. Local steps are usually AdamW's, hundreds a round. lr = 1 and
    momentum = 0 is the periodic average, to the bit. Stores two vectors, sends what the periodic average sends.

    Streaming: with P `fragments` every round sends one P-th of the model, in turn, so that no round is large; let
    the period be H / P. With a `delay` of t steps workers train on while it travels, and mix what arrives with what
    they did meanwhile, x <- alpha x + (1 - alpha) z. t must be shorter than the period; what is under way when the
    run ends is nobody's.
    Reference: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023 (arXiv
    2311.08105); Streaming DiLoCo with overlapping communication, 2025 (arXiv 2501.18512).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="diloco", help="Local SGD with an outer Nesterov step; fragments, overlap", cites=("douillard2023diloco",)
    )

    STATE: ClassVar[tuple[str, ...]] = ("anchor", "momenta", "since", "turn", "left", "message")

    lr: float = option(0.7, help="outer learning rate", above=0)
    momentum: float = option(0.9, help="outer momentum", least=0, below=1)
    nesterov: bool = option(True, help="Nesterov's momentum")
    fragments: int = option(1, help="parts of the model, one a round", least=1)
    delay: int = option(0, help="steps that workers train on while a message travels", least=0)
    alpha: float = option(
        0.0, help="part of its own fragment that a worker keeps when a delayed one arrives", least=0, below=1
    )
    weights: str = option(
        "size", help="by share of the examples, all alike, or by samples since the last round", choices=WEIGHTS
    )
    state: str = option(
        "local", help="of the optimizer, at a round: left alone, averaged, or begun afresh", choices=STATES
    )

    def check(self) -> None:
        if self.alpha and not self.delay:
            raise UserError(
                "alpha mixes in what a worker did during the delay, and there is none: pass delay=1 or more"
            )
        if self.state != "local" and (self.fragments > 1 or self.delay):
            raise UserError(f"state={self.state!r} needs rounds of the whole model: leave fragments and delay out")

    def init_state(self) -> None:
        self.averaging = Averaging(self.context, self.weights, self.state)
        self.overlap = Overlap(self.context)
        self.anchor: torch.Tensor | None = None  # z
        self.momenta = torch.zeros_like(self.flat.x)
        self.turn = 0  # rounds begun: whose fragment is next
        self.left = 0  # steps until the message in flight arrives
        self.arrives = False  # does it in this step?

    @property
    def since(self) -> int:
        return self.averaging.since

    @since.setter
    def since(self, value: int) -> None:
        self.averaging.since = value

    @property
    def message(self) -> Any:
        return self.overlap.state()

    @message.setter
    def message(self, state: Any) -> None:
        self.overlap.load(state)

    def averages(self) -> str:
        return "" if self.fragments > 1 or self.delay else "parameters"

    def carry(self, piggyback: Piggyback | None) -> None:
        self.averaging.piggyback = piggyback

    def mean_shares(self) -> list[float]:
        return self.averaging.mean_shares()

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> StepPlan:
        if self.anchor is None:
            self.anchor = x.clone()
        self.arrives = False
        if self.overlap.under_way:
            self.left -= 1
            if self.left <= self.delay // 2:
                self.overlap.turn()
            self.arrives = self.left == 0
        return StepPlan(message_arrives=self.arrives)

    def after_step(self, x: torch.Tensor) -> None:
        clock = self.context.clock
        if self.arrives:
            part = self._fragment(self.turn - 1)
            mean, weights = self.overlap.end()
            clock.rounds += 1
            self.averaging.divide(mean, weights)
            own = x[part].clone()
            x[part] = mean
            self._outer(x, part)
            x[part].lerp_(own, self.alpha)
        if not clock.due:
            return
        part = self._fragment(self.turn)
        if self.delay == 0:
            self.averaging.average(x[part])
            self._outer(x, part)
        elif self.overlap.under_way:
            raise UserError(
                f"a delay of {self.delay} steps is not shorter than the period: lower it, or talk less often"
            )
        else:
            self.overlap.begin(x[part], self.averaging.weight())
            self.left = self.delay
        self.turn += 1

    def _outer(self, x: torch.Tensor, part: slice) -> None:
        """The outer step on a fragment of `x`, where the mean of the workers is."""
        assert self.anchor is not None
        x, anchor, momenta = x[part], self.anchor[part], self.momenta[part]
        moved = anchor.sub_(x)
        # z - lr (d + mu u), written as the mean plus what is left of d: exact where lr = 1 and there is no momentum.
        once, again = (1 + self.momentum, self.momentum**2) if self.nesterov else (1.0, self.momentum)
        x.add_(moved, alpha=1 - self.lr * once).sub_(momenta, alpha=self.lr * again)
        momenta.mul_(self.momentum).add_(moved)
        anchor.copy_(x)

    def _fragment(self, turn: int) -> slice:
        return slice(*chunks(len(self.flat), self.fragments)[turn % self.fragments])

    def finish(self) -> None:
        self.overlap.drop()

    def centre(self) -> torch.Tensor | None:
        return self.anchor

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        start, stop = chunks(model.elements, self.fragments)[round % self.fragments]
        if not due:
            return 0, 0
        if self.delay:  # counted when it arrives
            messages, bytes = mean_cost(stop - start, model.itemsize, rank, size)
            return messages, bytes + (8 + model.itemsize) * (size - 1)
        return averaging_cost(
            self.averaging if self.is_bound else None, self.weights, stop - start, model.itemsize, rank, size
        )
