"""Weighted sums over workers that overlap with local steps: as they are, or through a wire.

Both have `begin`, `advance` and `end`, which may be any number of steps apart.
"""

from __future__ import annotations

from typing import Any

import torch

from ..comm.base import Pending
from ..comm.fused_reduction import chunks, pack_floats, sum_rows, unpack_rows
from ..comm.ledger import Deferred, mean_cost
from ..core.context import Context
from ..core.vector import ModelSize
from ..wire.channel import SumChannel, sum_cost


class OverlappedMean:
    """One sum at a time, as it is. The ledger counts it when it ends.

    A reduce-scatter followed by an all-gather: rank p sums chunk p of all workers, in rank order, and sends the sum to
    all. As many bytes as an all-reduce.
    """

    def __init__(self, context: Context):
        self.context = context
        self._message: torch.Tensor | None = None  # what this worker sent: every chunk, followed by the weight
        self._pending: Pending | None = None
        self._reduced = False  # has the all-gather started?
        self._cost = Deferred()

    @property
    def in_flight(self) -> bool:
        return self._message is not None

    @torch.no_grad()
    def begin(self, vector: torch.Tensor, weight: float, start: int) -> None:
        """Send `weight` times a vector, which may change afterwards; `start` is its place in the model."""
        assert not self.in_flight, "a mean is in flight"
        tail = pack_floats([weight], vector.dtype).to(vector.device)
        parts = [vector[a:b] * weight for a, b in chunks(len(vector), self.context.size)]
        self._send(torch.cat([x for part in parts for x in (part, tail)]), len(vector), len(tail))

    def _send(self, message: torch.Tensor, elements: int, tail: int) -> None:
        comm = self.context.comm
        self._message, self._elements, self._tail = message, elements, tail
        self._reduced, self._cost = False, Deferred()
        rows = torch.split(message, [b - a + tail for a, b in self._bounds()])
        self._rows = [rows[p] if p == comm.rank else torch.empty_like(rows[comm.rank]) for p in range(comm.size)]
        self._exchange({p: row for p, row in enumerate(rows) if p != comm.rank}, self._rows)

    def advance(self, elapsed: float) -> None:
        """This part of the time has passed: after half of it the sums are sent."""
        if elapsed >= 0.5:
            self.start_all_gather()

    @torch.no_grad()
    def start_all_gather(self) -> None:
        """Sum this worker's chunk and send the sum to all workers, unless that has been done."""
        if self._reduced or not self.in_flight:
            return
        comm, (a, b) = self.context.comm, self._bounds()[self.context.rank]
        self._wait()
        self._weights = [weight for [weight] in unpack_rows([row[b - a :] for row in self._rows])]
        own = sum_rows([row[: b - a] for row in self._rows], torch.empty_like(self._rows[0][: b - a]))
        # One more element: a vector shorter than the world size has empty chunks, and a message must not be empty.
        own = torch.cat((own, own.new_zeros(1)))
        lengths = [stop - start + 1 for start, stop in self._bounds()]
        self._sums = [own if p == comm.rank else own.new_empty(n) for p, n in enumerate(lengths)]
        self._reduced = True
        self._exchange({p: own for p in range(comm.size) if p != comm.rank}, self._sums)

    @torch.no_grad()
    def end(self) -> tuple[torch.Tensor, list[float]]:
        """The sum of the weighted vectors, and the weights by rank."""
        self.start_all_gather()
        self._wait()
        self.context.comm.ledger.record(self._cost.messages, self._cost.bytes)
        self._message = None
        return torch.cat([row[:-1] for row in self._sums]), self._weights

    def drop(self) -> None:
        """Discard a mean in flight, as if it had not begun; all workers must do so together."""
        if self.in_flight:
            self._wait()
            self._message = None

    def state(self) -> dict[str, Any] | None:
        """The message in flight: a resumed run sends it again."""
        if self._message is None:
            return None
        return {"message": self._message.clone(), "elements": self._elements, "tail": self._tail}

    def load(self, state: dict[str, Any] | None) -> None:
        self.drop()
        if state is not None:
            self._send(state["message"].clone(), state["elements"], state["tail"])

    def _bounds(self) -> list[tuple[int, int]]:
        return chunks(self._elements, self.context.size)

    def _exchange(self, outgoing: dict[int, torch.Tensor], rows: list[torch.Tensor]) -> None:
        comm = self.context.comm
        with comm.ledger.deferred(self._cost):
            self._pending = comm.exchange(outgoing, {p: row for p, row in enumerate(rows) if p != comm.rank})

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.wait()
            self._pending = None


class OverlappedProgress:
    """The same through a wire. What is in flight is part of the wire's state."""

    def __init__(self, channel: SumChannel):
        self.channel = channel

    @property
    def in_flight(self) -> bool:
        return self.channel.in_flight

    def begin(self, vector: torch.Tensor, weight: float, start: int) -> None:
        self.channel.begin(vector * weight, [weight], start)

    def advance(self, elapsed: float) -> None:
        self.channel.advance(elapsed)

    def end(self) -> tuple[torch.Tensor, list[float]]:
        return self.channel.end()

    def drop(self) -> None:
        self.channel.drop()

    def state(self) -> None:
        return None

    def load(self, state: None) -> None: ...


def overlapped_cost(model: ModelSize, start: int, stop: int, rank: int, size: int) -> tuple[int, int]:
    """Messages and bytes of a sum of a part of the model; counted when it ends."""
    if model.wire is not None:
        return sum_cost(model, 1, rank, size, start, stop)
    messages, bytes = mean_cost(stop - start, model.itemsize, rank, size)
    return messages, bytes + (8 + model.itemsize) * (size - 1)
