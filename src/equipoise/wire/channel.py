"""Sums over all workers through a wire, with error feedback. A sum may overlap with local steps.

    e_i <- b e_i + d_i;   m_i = C(e_i);   e_i <- e_i - m_i;   all workers receive sum_i m_i

Where chunks are summed by their ranks and coded again (all-to-all), rank p keeps the residual of its sums too. All
workers decode the same bytes in the same order, so all receive the same sum, on any kind of workers.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import torch

from ..comm.base import Pending
from ..comm.fused_reduction import chunks, pack_floats, sum_in_order, sum_rows, unpack_floats
from ..comm.ledger import Deferred
from ..core.errors import NonFinite
from ..core.vector import ModelSize
from .base import Draw, Piece, is_finite, pieces_of
from .linear import LinearWire
from .rows import RowWire

if TYPE_CHECKING:
    from .base import Wire

Exchange = tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]  # outgoing and incoming messages
Summation = Generator[Exchange, None, torch.Tensor]


class SumChannel:
    """One sum at a time. `feedback = False` codes what it is given, without a residual."""

    # What outlives a change of membership; what this rank has kept of its sums does not.
    COMMON = ("count", "reference", "memories")
    OWN = ("unsent",)

    def __init__(self, wire: Wire, number: int, *, feedback: bool):
        assert wire.context.flat is not None
        self.wire, self.context, self.number = wire, wire.context, number
        self.flat = wire.context.flat
        self.feedback = wire.feedback if feedback else 0.0
        self.shapes = tuple(tuple(s.shape) for s in self.flat.slices)
        self.count = 0  # sums so far
        self.reference: torch.Tensor | None = None  # the model to which a sync takes differences, if it has no own
        self.residual: torch.Tensor | None = None  # e; while a sum is in flight, what it codes
        self.sum_residuals: dict[int, torch.Tensor] = {}  # of the sums that this rank codes, by start of the part
        self.memories: dict[int, Any] = {}  # of the wire, by start of the part
        self._flight: tuple[int, int, list[float]] | None = None  # start, stop and weights of the sum in flight
        self._stages: Summation | None = None
        self._pending: Pending | None = None
        self._done = 0  # exchanges of it that are over
        self._total: torch.Tensor | None = None  # its result, once it is known
        self._totals: list[float] = []
        self._cost = Deferred()

    @property
    def in_flight(self) -> bool:
        return self._flight is not None

    @property
    def unsent(self) -> torch.Tensor | None:
        """The residual; none of it where a sum in flight was lost, whose vector is coded again with the next one."""
        return None if self.in_flight or not self.feedback else self.residual

    @unsent.setter
    def unsent(self, value: torch.Tensor | None) -> None:
        self.residual = value

    @property
    def exchanges(self) -> int:
        """Of the sum in flight."""
        assert self._flight is not None
        start, stop, _ = self._flight
        if isinstance(self.wire, LinearWire):
            return 2 * len(self.wire.lengths(stop - start, pieces_of(self.shapes, start, stop)))
        return 1 if self.wire.collective() == "all-gather" else 2

    def reference_model(self) -> torch.Tensor:
        """A model that all workers hold, from which differences are taken; at first the initial one."""
        if self.reference is None:
            assert self.wire.initial is not None, "differences need the initial model"
            self.reference = self.wire.initial.clone()
        return self.reference

    def sum(self, vector: torch.Tensor, weights: list[float], start: int = 0) -> tuple[torch.Tensor, list[float]]:
        """The sums over workers of what the wire made of the vectors (float32), and of the weights.

        start: where the vector begins in the model, if it is only a part of it.
        """
        self.begin(vector, weights, start)
        return self.end()

    @torch.no_grad()
    def begin(self, vector: torch.Tensor, weights: list[float], start: int = 0) -> None:
        """Send a vector, which may change afterwards."""
        assert not self.in_flight, "a sum is in flight"
        if self.residual is None:
            self.residual = torch.zeros(len(self.flat), dtype=torch.float32, device=vector.device)
        coded = self.residual[start : start + len(vector)]
        if self.feedback == 0.0:
            coded.copy_(vector)
        elif self.feedback == 1.0:
            coded.add_(vector)
        else:
            coded.mul_(self.feedback).add_(vector)
        self._launch(start, start + len(vector), weights)

    @torch.no_grad()
    def advance(self, elapsed: float = 1.0) -> None:
        """Begin the exchanges that are due when this part of the time for the sum has passed."""
        while self._flight is not None and self._done < min(int(self.exchanges * elapsed), self.exchanges - 1):
            self._next()

    @torch.no_grad()
    def end(self) -> tuple[torch.Tensor, list[float]]:
        """The sum in flight, and the sums of the weights."""
        assert self._flight is not None, "no sum is in flight"
        while self._total is None:
            self._next()
        total = self._total
        self._flight = self._stages = self._total = None
        self.context.comm.ledger.record(self._cost.messages, self._cost.bytes)
        self.count += 1
        if not is_finite(total):
            comm = self.context.comm
            raise NonFinite(
                f"worker {comm.rank}, step {comm.step}: what a worker sent over the wire is NaN or infinite; lower the "
                "learning rate or fix the data",
                comm.rank,
                comm.step,
            )
        return total, self._totals

    def drop(self) -> None:
        """Discard a sum in flight; all workers must do so together."""
        if self._pending is not None:
            self._pending.wait()
        self._pending = self._stages = self._flight = self._total = None

    def state(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "reference": self.reference,
            "residual": self.residual if self.feedback or self.in_flight else None,
            "sum_residuals": self.sum_residuals,
            "memories": self.memories,
            "flight": None if self._flight is None else list(self._flight),
        }

    def load(self, state: dict[str, Any]) -> None:
        """A sum that was in flight is sent again."""
        self.drop()
        self.count, self.reference, self.residual = state["count"], state["reference"], state["residual"]
        self.sum_residuals, self.memories = state["sum_residuals"], state["memories"]
        if state["flight"] is not None:
            self._launch(*state["flight"])

    # -- stages --------------------------------------------------------------------------------------------------------
    def _launch(self, start: int, stop: int, weights: list[float]) -> None:
        assert self.residual is not None
        coded = self.residual[start:stop]
        if not is_finite(coded):
            coded.fill_(torch.nan)  # all workers must notice, whatever the wire leaves out
        self._flight, self._cost, self._done = (start, stop, weights), Deferred(), -1
        worker = self.context.worker
        draw = Draw(worker.seed, worker.rank, self.number, self.count)
        if isinstance(self.wire, LinearWire):
            self._stages = self._sum_linear(self.wire, coded, pieces_of(self.shapes, start, stop), draw)
        else:
            assert isinstance(self.wire, RowWire)
            summed = self._gather_codes if self.wire.collective() == "all-gather" else self._scatter_codes
            self._stages = summed(self.wire, coded, draw)
        self._next()

    def _next(self) -> None:
        """Wait for the exchange in flight and begin the next one; after the last one the total is known."""
        assert self._stages is not None
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
        self._done += 1
        try:
            outgoing, incoming = next(self._stages)
        except StopIteration as over:
            self._total = over.value
            return
        comm = self.context.comm
        with comm.ledger.deferred(self._cost):
            self._pending = comm.exchange(outgoing, incoming)

    def _scatter_codes(self, wire: RowWire, coded: torch.Tensor, draw: Draw) -> Summation:
        """Codes of chunks to their ranks, sums in float32, codes of the sums to all workers."""
        rank, others, start = self.context.rank, self._others(), self._start
        rows = wire.rows_of(coded, self.context.size)
        codes = wire.encode_rows(rows, draw)
        bounds = chunks(len(rows), self.context.size)
        (first, last), width, tail = bounds[rank], codes.shape[1], self._tail(torch.uint8)
        received = {p: codes.new_empty((last - first) * width + len(tail)) for p in others}
        yield {p: torch.cat((codes[a:b].reshape(-1), tail)) for p, (a, b) in enumerate(bounds) if p != rank}, received
        self._add_weights({p: message[-len(tail) :] for p, message in received.items()})
        own = codes[first:last]
        total = torch.zeros_like(rows[first:last])
        for p in range(self.context.size):
            code = own if p == rank else received[p][: -len(tail)].view(last - first, width)
            wire.add_decoded_rows(code, total, 1.0)
        if self.feedback and start in self.sum_residuals:
            total.add_(self.sum_residuals[start], alpha=self.feedback)
        back = wire.encode_rows(total, draw._replace(stage=1)) if last > first else own
        sums = {p: codes.new_empty((b - a) * width) for p, (a, b) in enumerate(bounds) if p != rank and b > a}
        yield dict.fromkeys(others, back.view(-1)) if last > first else {}, sums
        result = torch.zeros_like(rows)
        sums[rank] = back.view(-1)
        for p, message in sums.items():
            a, b = bounds[p]
            if b > a:
                wire.add_decoded_rows(message.view(b - a, width), result[a:b], 1.0)
        if self.feedback:
            self.sum_residuals[start] = total.sub_(result[first:last])
            self._subtract(wire, codes, rows, coded)
        return result.view(-1)[: len(coded)]

    def _gather_codes(self, wire: RowWire, coded: torch.Tensor, draw: Draw) -> Summation:
        """Codes to all workers, who sum what they decode."""
        rows, tail = wire.rows_of(coded), self._tail(torch.uint8)
        codes = wire.encode_rows(rows, draw)
        message = torch.cat((codes.view(-1), tail))
        received = {p: torch.empty_like(message) for p in self._others()}
        yield dict.fromkeys(received, message), received
        self._add_weights({p: row[-len(tail) :] for p, row in received.items()})
        result = torch.zeros_like(rows)
        for p in range(self.context.size):
            code = codes if p == self.context.rank else received[p][: -len(tail)].view(codes.shape)
            wire.add_decoded_rows(code, result, 1.0)
        if self.feedback:
            self._subtract(wire, codes, rows, coded)
        return result.view(-1)[: len(coded)]

    def _sum_linear(self, wire: LinearWire, coded: torch.Tensor, pieces: tuple[Piece, ...], draw: Draw) -> Summation:
        """Each stage's numbers are summed by chunks, in rank order."""
        start = self._start
        sums: list[torch.Tensor] = []
        steps = wire.compress(coded, pieces, draw, self.memories.get(start))
        message, tail = next(steps), self._tail(torch.float32)
        while True:
            total = yield from self._sum_numbers(message, tail if not sums else tail[:0])
            sums.append(total)
            try:
                message = steps.send(total)
            except StopIteration as over:
                own, memory = over.value
                break
        result = torch.empty_like(coded)
        wire.expand(sums, result, pieces, draw)
        if memory is not None:
            self.memories[start] = memory
        if self.feedback:
            coded.sub_(own)
        return result

    def _sum_numbers(self, message: torch.Tensor, tail: torch.Tensor) -> Summation:
        rank, bounds = self.context.rank, chunks(len(message), self.context.size)
        first, last = bounds[rank]
        length = last - first + len(tail)
        received = {p: message.new_empty(length) for p in self._others() if length}
        outgoing = {p: torch.cat((message[a:b], tail)) for p, (a, b) in enumerate(bounds) if b - a + len(tail)}
        outgoing.pop(rank, None)
        yield outgoing, received
        if len(tail):
            self._add_weights({p: row[-len(tail) :] for p, row in received.items()})
        result = torch.empty_like(message)
        if last > first:
            rows = [message[first:last] if p == rank else received[p] for p in range(self.context.size)]
            sum_rows([row[: last - first] for row in rows], result[first:last])
        own = result[first:last]
        yield (
            dict.fromkeys(self._others(), own) if last > first else {},
            {p: result[a:b] for p, (a, b) in enumerate(bounds) if p != rank and b > a},
        )
        return result

    def _subtract(self, wire: RowWire, codes: torch.Tensor, rows: torch.Tensor, coded: torch.Tensor) -> None:
        """e <- e - m."""
        wire.add_decoded_rows(codes, rows, -1.0)
        if rows.data_ptr() != coded.data_ptr():
            coded.copy_(rows.view(-1)[: len(coded)])

    @property
    def _start(self) -> int:
        assert self._flight is not None
        return self._flight[0]

    def _others(self) -> list[int]:
        return [p for p in range(self.context.size) if p != self.context.rank]

    def _tail(self, dtype: torch.dtype) -> torch.Tensor:
        """This worker's weights, behind its first message to each other worker."""
        assert self._flight is not None
        return pack_floats(self._flight[2], dtype).to(self.flat.x.device)

    def _add_weights(self, tails: dict[int, torch.Tensor]) -> None:
        assert self._flight is not None
        rows = [self._flight[2] if p not in tails else unpack_floats(tails[p]) for p in range(self.context.size)]
        self._totals = [sum_in_order(list(column)) for column in zip(*rows, strict=True)]


def sum_cost(
    model: ModelSize, weights: int, rank: int, size: int, start: int = 0, stop: int | None = None
) -> tuple[int, int]:
    """Messages and bytes that `rank` sends for the sum of a part of the model with so many weights."""
    assert model.wire is not None
    stop = model.elements if stop is None else stop
    messages, bytes = model.wire.sum_cost(stop - start, pieces_of(model.shapes, start, stop), rank, size)
    return messages, bytes + 8 * weights * (size - 1)
