"""A weighted mean over workers that travels while they train on.

Worker p sums piece p: everybody sends everybody else its piece, with the weight it has been multiplied by; sums go back round.
As many bytes as an all-reduce, in rank order. `begin`, `turn` and `end` may be any number of steps apart.
"""

from __future__ import annotations

from typing import Any

import torch

from ..comm.base import Pending
from ..comm.fused_reduction import chunks, pack_floats, sum_rows, unpack_floats
from ..core.context import Context


class Overlap:
    """One worker's side of one mean at a time. It counts, in the ledger, when it ends."""

    def __init__(self, context: Context):
        self.context = context
        self._message: torch.Tensor | None = None  # what this worker sent: all pieces, each with the weight behind it
        self._pending: Pending | None = None
        self._turned = False
        self._deferred_cost = (0, 0)

    @property
    def under_way(self) -> bool:
        return self._message is not None

    @torch.no_grad()
    def begin(self, vector: torch.Tensor, weight: float) -> None:
        """Send `weight` times a vector, which may change from now on."""
        assert not self.under_way, "a mean is under way"
        tail = pack_floats([weight], vector.dtype).to(vector.device)
        parts = [vector[a:b] * weight for a, b in chunks(len(vector), self.context.size)]
        self._send(torch.cat([x for part in parts for x in (part, tail)]), len(vector), len(tail))

    def _send(self, message: torch.Tensor, elements: int, tail: int) -> None:
        comm = self.context.comm
        self._message, self._elements, self._tail, self._turned, self._deferred_cost = (
            message,
            elements,
            tail,
            False,
            (0, 0),
        )
        rows = message.split([b - a + tail for a, b in self._bounds()])
        self._rows = [rows[p] if p == comm.rank else torch.empty_like(rows[comm.rank]) for p in range(comm.size)]
        self._exchange({p: row for p, row in enumerate(rows) if p != comm.rank}, self._rows)

    @torch.no_grad()
    def turn(self) -> None:
        """Sum this worker's piece and send it round, if that has not been done."""
        if self._turned or not self.under_way:
            return
        comm, (a, b) = self.context.comm, self._bounds()[self.context.rank]
        self._wait()
        self._weights = [unpack_floats(row[b - a :])[0] for row in self._rows]
        mine = sum_rows([row[: b - a] for row in self._rows], torch.empty_like(self._rows[0][: b - a]))
        # Nobody's piece is empty on the wire.
        mine = torch.cat((mine, mine.new_zeros(1)))
        lengths = [stop - start + 1 for start, stop in self._bounds()]
        self._sums = [mine if p == comm.rank else mine.new_empty(n) for p, n in enumerate(lengths)]
        self._turned = True
        self._exchange({p: mine for p in range(comm.size) if p != comm.rank}, self._sums)

    @torch.no_grad()
    def end(self) -> tuple[torch.Tensor, list[float]]:
        """The sum of the weighted vectors, and everybody's weight."""
        self.turn()
        self._wait()
        self.context.comm.ledger.record(*self._deferred_cost)
        self._message = None
        return torch.cat([row[:-1] for row in self._sums]), self._weights

    def drop(self) -> None:
        """Forget what is under way, as if it had not begun; all workers do it together."""
        if self.under_way:
            self._wait()
            self._message = None

    def state(self) -> dict[str, Any] | None:
        """What was sent: after a checkpoint it is sent again."""
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
        self._deferred_cost = (
            self._deferred_cost[0] + ledger.messages - before[0],
            self._deferred_cost[1] + ledger.bytes - before[1],
        )
        ledger.messages, ledger.bytes = before

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
