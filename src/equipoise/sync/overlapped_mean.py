"""A weighted mean over workers that overlaps with local steps.

A reduce-scatter followed by an all-gather: rank p sums chunk p of all workers, in rank order, and sends the sum to all.
As many bytes as an all-reduce. `begin`, `start_all_gather` and `end` may be any number of steps apart.
"""

from __future__ import annotations

from typing import Any

import torch

from ..comm.base import Pending
from ..comm.fused_reduction import chunks, pack_floats, sum_rows, unpack_floats
from ..core.context import Context


class OverlappedMean:
    """One worker's side of one mean at a time. The ledger counts a mean when it ends."""

    def __init__(self, context: Context):
        self.context = context
        self._message: torch.Tensor | None = None  # what this worker sent: every chunk, followed by the weight
        self._pending: Pending | None = None
        self._reduced = False  # has the all-gather started?
        self._deferred_cost = (0, 0)  # messages and bytes

    @property
    def in_flight(self) -> bool:
        return self._message is not None

    @torch.no_grad()
    def begin(self, vector: torch.Tensor, weight: float) -> None:
        """Send `weight` times a vector, which may change afterwards."""
        assert not self.in_flight, "a mean is in flight"
        tail = pack_floats([weight], vector.dtype).to(vector.device)
        parts = [vector[a:b] * weight for a, b in chunks(len(vector), self.context.size)]
        self._send(torch.cat([x for part in parts for x in (part, tail)]), len(vector), len(tail))

    def _send(self, message: torch.Tensor, elements: int, tail: int) -> None:
        comm = self.context.comm
        self._message, self._elements, self._tail = message, elements, tail
        self._reduced, self._deferred_cost = False, (0, 0)
        rows = torch.split(message, [b - a + tail for a, b in self._bounds()])
        self._rows = [rows[p] if p == comm.rank else torch.empty_like(rows[comm.rank]) for p in range(comm.size)]
        self._exchange({p: row for p, row in enumerate(rows) if p != comm.rank}, self._rows)

    @torch.no_grad()
    def start_all_gather(self) -> None:
        """Sum this worker's chunk and send the sum to all workers, unless that has been done."""
        if self._reduced or not self.in_flight:
            return
        comm, (a, b) = self.context.comm, self._bounds()[self.context.rank]
        self._wait()
        self._weights = [unpack_floats(row[b - a :])[0] for row in self._rows]
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
        self.context.comm.ledger.record(*self._deferred_cost)
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
        comm, ledger = self.context.comm, self.context.comm.ledger
        before = ledger.messages, ledger.bytes
        self._pending = comm.exchange(outgoing, {p: row for p, row in enumerate(rows) if p != comm.rank})
        messages, bytes = self._deferred_cost
        self._deferred_cost = messages + ledger.messages - before[0], bytes + ledger.bytes - before[1]
        ledger.messages, ledger.bytes = before

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
