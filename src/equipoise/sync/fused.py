"""The weighted mean of a vector over workers and a rider's numbers, in one collective.

Worker p sums piece p. Everybody sends everybody else its piece of [w v | the rider's vector | numbers]; sums and what the
rider sees in the pieces go back round. That is as much as an all-reduce sends for `v`, and half of it for the rider's vector, which nobody
needs whole. `begin`, `turn` and `end` are apart so that a method can train while the messages travel.
"""

from __future__ import annotations

from typing import Any

import torch

from ..comm.base import Pending
from ..comm.ledger import mean_cost
from ..context import Context
from ..rider import Rider


def pieces(elements: int, size: int) -> list[tuple[int, int]]:
    """Start and stop of each worker's piece of a vector."""
    found, start = [], 0
    for rank in range(size):
        stop = start + elements // size + (rank < elements % size)
        found.append((start, stop))
        start = stop
    return found


class Fused:
    """One worker's side. `averaged` names the vector that the owner averages, for riders that want its mean.

    `share`: are the weights parts of one already? Otherwise the sum is divided by the sum of the weights.
    """

    def __init__(self, context: Context, averaged: str = "", share: bool = True):
        self.context, self.averaged, self.share = context, averaged, share
        if averaged:
            context.averages = averaged
        self._pending: Pending | None = None
        self._turned = False
        self._bill = [0, 0]
        self._message: torch.Tensor | None = None
        self._spaces: dict[str, torch.Tensor] = {}

    @property
    def under_way(self) -> bool:
        return self._message is not None

    def average(self, vector: torch.Tensor, weight: float) -> None:
        """vector <- the weighted mean over workers, in place."""
        self.begin(vector, weight)
        self.turn()
        self.end(vector)

    @torch.no_grad()
    def begin(self, vector: torch.Tensor, weight: float) -> None:
        """Send the pieces of `vector`, which may change afterwards, and of whoever rides along."""
        assert not self.under_way, "a round is under way"
        rider = self.context.rider
        rider = rider if rider is not None and rider.aboard else None
        note, extra = [weight], None
        if rider is not None:
            rider.aboard = False
            note += rider.note()
            extra = rider.vector(self.averaged)
        bits = _bits(note, vector.dtype)
        self._rider, self._elements, self._extras = rider, len(vector), 0 if extra is None else len(extra)
        self._tail = len(bits)
        self._message = self._space("out", sum(self._widths()), vector)
        for row, (a, b), (c, d) in zip(self._rows(), self._pieces(), self._extra_pieces(), strict=True):
            torch.mul(vector[a:b], weight, out=row[: b - a])
            if extra is not None:
                row[b - a : b - a + d - c].copy_(extra[c:d])
            row[len(row) - len(bits) :].copy_(bits)
        self._send()

    def _send(self) -> None:
        comm, rows = self.context.comm, self._rows()
        peers = [p for p in range(comm.size) if p != comm.rank]
        width = self._widths()[comm.rank]
        inbox = self._space("in", comm.size * width, rows[0]).view(comm.size, width)
        self._inbox = [rows[comm.rank] if p == comm.rank else inbox[p] for p in range(comm.size)]
        self._turned = False
        self._exchange({p: rows[p] for p in peers}, {p: self._inbox[p] for p in peers})

    @torch.no_grad()
    def turn(self) -> None:
        """Sum this worker's piece over workers in rank order, let the rider look at it, send it round."""
        if not self.under_way or self._turned:
            return
        comm = self.context.comm
        self._wait()
        a, b = self._pieces()[comm.rank]
        c, d = self._extra_pieces()[comm.rank]
        self._notes = [_numbers(row[len(row) - self._tail :]) for row in self._inbox]
        weights = [note[0] for note in self._notes]
        back = self._space("back", b - a + self._looks(), self._inbox[0])
        total = back[: b - a].copy_(self._inbox[0][: b - a])
        for row in self._inbox[1:]:
            total += row[: b - a]
        if not self.share and sum(weights):
            total.div_(sum(weights))
        if self._rider is not None:
            notes = [note[1:] for note in self._notes]
            if self._extras:
                rows, scales = [row[b - a : b - a + d - c] for row in self._inbox], [1.0] * comm.size
            else:
                rows, scales = [row[: b - a] for row in self._inbox], weights
            seen = self._rider.look(rows, scales, notes, c if self._extras else a)
            back[b - a :].copy_(_bits(seen, back.dtype))
        peers = [p for p in range(comm.size) if p != comm.rank]
        widths = [stop - start + self._looks() for start, stop in self._pieces()]
        inbox = self._space("returned", sum(widths), back).split(widths)
        self._returned = [back if p == comm.rank else inbox[p] for p in range(comm.size)]
        self._turned = True
        self._exchange(dict.fromkeys(peers, back), {p: self._returned[p] for p in peers})

    @torch.no_grad()
    def end(self, vector: torch.Tensor) -> None:
        """Put the mean into `vector` and hand the rider its numbers."""
        self.turn()
        self._wait()
        self.context.comm.ledger.record(*self._bill)
        self._bill = [0, 0]
        self._message = None
        findings = []
        for row, (a, b) in zip(self._returned, self._pieces(), strict=True):
            vector[a:b].copy_(row[: b - a])
            if self._rider is not None:
                findings.append(_numbers(row[b - a :]))
        if self._rider is not None:
            self._rider.arrive([note[1:] for note in self._notes], findings)

    def drop(self) -> None:
        """Forget a round that is under way, as if it had not begun; all workers do it together."""
        if self.under_way:
            self._wait()
            self._message, self._bill = None, [0, 0]

    # -- a round that a checkpoint cuts off is sent again -----------------------------------------------------------
    def state(self) -> dict[str, Any] | None:
        if self._message is None:
            return None
        shape = {"elements": self._elements, "extras": self._extras, "tail": self._tail, "rides": self._rider is not None}
        return {"message": self._message.clone(), **shape}

    def load(self, state: dict[str, Any] | None) -> None:
        """Go on from `state`; the messages leave at once, on all workers."""
        self.drop()
        if state is None:
            return
        self._elements, self._extras, self._tail = state["elements"], state["extras"], state["tail"]
        self._rider = self.context.rider if state["rides"] else None
        self._message = self._space("out", len(state["message"]), state["message"]).copy_(state["message"])
        self._send()

    # -- where things are -------------------------------------------------------------------------------------------
    def _pieces(self) -> list[tuple[int, int]]:
        return pieces(self._elements, self.context.size)

    def _extra_pieces(self) -> list[tuple[int, int]]:
        return pieces(self._extras, self.context.size)

    def _widths(self) -> list[int]:
        both = zip(self._pieces(), self._extra_pieces(), strict=True)
        return [b - a + d - c + self._tail for (a, b), (c, d) in both]

    def _looks(self) -> int:
        return 0 if self._rider is None else len(_bits([0.0] * self._rider.findings, self._inbox[0].dtype))

    def _rows(self) -> list[torch.Tensor]:
        assert self._message is not None
        return list(self._message.split(self._widths()))

    def _space(self, name: str, elements: int, like: torch.Tensor) -> torch.Tensor:
        """Memory that is made once; rounds of several lengths share it."""
        found = self._spaces.get(name)
        if found is None or len(found) < elements or found.dtype != like.dtype:
            found = self._spaces[name] = like.new_empty(elements)
        return found[:elements]

    def _exchange(self, outgoing: dict[int, torch.Tensor], incoming: dict[int, torch.Tensor]) -> None:
        # Counted when the round ends: one that a checkpoint cuts off is sent again and must count once.
        ledger = self.context.comm.ledger
        before = ledger.messages, ledger.bytes
        self._pending = self.context.comm.exchange(outgoing, incoming)
        self._bill = [self._bill[0] + ledger.messages - before[0], self._bill[1] + ledger.bytes - before[1]]
        ledger.messages, ledger.bytes = before

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.wait()
            self._pending = None


def fused_cost(elements: int, itemsize: int, rank: int, size: int) -> tuple[int, int]:
    """Messages and bytes of one mean without a rider: an all-reduce, and the weight to everybody."""
    messages, bytes = mean_cost(elements, itemsize, rank, size)
    return messages, bytes + 8 * (size - 1)


def _bits(numbers: list[float], dtype: torch.dtype) -> torch.Tensor:
    """Numbers in full precision, dressed as elements of a narrower dtype that is only carried."""
    return torch.tensor(numbers, dtype=torch.float64).view(dtype)


def _numbers(bits: torch.Tensor) -> list[float]:
    return bits.cpu().clone().view(torch.float64).tolist()
