"""Vectors from one worker to others through a wire, without a residual: the receivers' model advances by what arrived.

    t <- t + C(x - t)      at the sender and at all receivers, who hold the same t

What a message leaves out is still part of x - t, so the next one sends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..core.finite import is_finite
from .base import Draw, pieces_of

if TYPE_CHECKING:
    from .base import Wire


class MessageChannel:
    """All workers call `next_message` together, whoever sends."""

    # What outlives a change of membership.
    COMMON = ("count",)
    OWN = ("memory",)

    def __init__(self, wire: Wire, number: int):
        assert wire.context.flat is not None
        self.wire, self.context, self.number = wire, wire.context, number
        self.elements = len(wire.context.flat)
        self.pieces = pieces_of(tuple(tuple(s.shape) for s in wire.context.flat.slices))
        self.count = 0
        self.memory: Any = None

    def next_message(self) -> torch.Tensor:
        """Count one message; memory for it."""
        self.count += 1
        length = self.wire.message_bytes(self.elements, self.pieces)
        assert self.context.flat is not None
        return torch.empty(length, dtype=torch.uint8, device=self.context.flat.x.device)

    @torch.no_grad()
    def encode(self, difference: torch.Tensor) -> torch.Tensor:
        coded = difference.to(torch.float32)
        if not is_finite(coded):
            coded = torch.full_like(coded, torch.nan)
        message, self.memory = self.wire.encode(coded, self.pieces, self._draw(self.context.rank), self.memory)
        return message

    @torch.no_grad()
    def decode(self, message: torch.Tensor, sender: int) -> torch.Tensor:
        assert self.context.flat is not None
        decoded = torch.zeros(self.elements, dtype=torch.float32, device=message.device)
        self.wire.add_decoded(message, decoded, self.pieces, self._draw(sender))
        return decoded

    def _draw(self, sender: int) -> Draw:
        return Draw(self.context.worker.seed, sender, self.number, self.count)

    def drop(self) -> None:
        """Nothing is ever in flight here."""

    def forget(self) -> None:
        """Forget the wire's memory; all workers do so together."""
        self.memory = None

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "memory": self.memory}

    def load(self, state: dict[str, Any]) -> None:
        self.count, self.memory = state["count"], state["memory"]
