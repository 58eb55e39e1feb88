"""Sums over workers that arrive a number of local steps after they were sent, as they are or through a wire."""

from __future__ import annotations

from typing import Any

import torch

from ..core.context import Context
from ..wire.channel import SumChannel
from .overlapped_mean import OverlappedMean


class LateSums:
    """The sums of a vector and of a few weights. One pair at a time is in flight, for `delay` steps."""

    def __init__(self, context: Context, channel: SumChannel | None, delay: int):
        self.channel, self.delay = channel, delay
        self.plain = OverlappedMean(context)
        self.weights: list[float] = []  # that this worker sent
        self.model: torch.Tensor | None = None  # of this worker when it sent; None if it was not finite
        self.steps_left = 0
        self.arrive = False  # after this step?

    @property
    def in_flight(self) -> bool:
        return self.plain.in_flight if self.channel is None else self.channel.in_flight

    def begin(self, vector: torch.Tensor, weights: torch.Tensor, model: torch.Tensor | None) -> None:
        self.weights, self.steps_left = weights.tolist(), self.delay
        self.model = None if model is None else model.clone()
        if self.channel is not None:
            self.channel.begin(vector, self.weights)
        else:
            self.plain.begin(torch.cat([vector, weights.to(vector)]), 1.0, 0)

    def step(self) -> None:
        """A local step begins."""
        self.arrive = False
        if self.in_flight:
            self.steps_left -= 1
            (self.plain if self.channel is None else self.channel).advance(1.0 - self.steps_left / self.delay)
            self.arrive = self.steps_left == 0

    def end(self) -> tuple[torch.Tensor, list[float]]:
        if self.channel is not None:
            return self.channel.end()
        total, _ = self.plain.end()
        length = len(total) - len(self.weights)
        return total[:length], total[length:].tolist()

    def drop(self) -> None:
        """Discard what is in flight; all workers do so together."""
        (self.plain if self.channel is None else self.channel).drop()

    def state(self) -> dict[str, Any] | None:
        """A resumed run sends again what is in flight. Through a wire that is part of the wire's state."""
        if not self.in_flight:
            return None
        message = self.plain.state() if self.channel is None else None
        return {"message": message, "weights": self.weights, "model": self.model, "steps_left": self.steps_left}

    def load(self, state: dict[str, Any] | None) -> None:
        if self.channel is None:
            self.plain.load(None if state is None else state["message"])
        if state is not None:
            self.weights, self.model, self.steps_left = state["weights"], state["model"], state["steps_left"]
