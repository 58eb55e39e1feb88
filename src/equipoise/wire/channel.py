"""Sums over all workers through a wire, with error feedback. A sum may overlap with local steps.

    e_i <- b e_i + d_i;   m_i = C(e_i);   e_i <- e_i - m_i;   all workers receive sum_i m_i

With residuals in the models (`in_model`) the sync takes e_i after each sum and adds it to the model of worker i.

Where chunks are summed by their ranks and coded again (all-to-all), rank p keeps the residual of its sums too. All
workers decode the same bytes in the same order, so all receive the same sum, on any kind of workers.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import torch

from ..comm.base import Pending
from ..comm.fused_reduction import chunks, pack_floats, sum_in_order, sum_rows, unpack_rows
from ..comm.ledger import Deferred
from ..core.errors import NonFinite
from ..core.finite import is_finite
from ..core.vector import ModelSize
from .base import Draw, Piece, pieces_of
from .linear import LinearWire
from .rows import CACHED, RowWire

if TYPE_CHECKING:
    from .base import Wire

Exchange = tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]  # outgoing and incoming messages
Summation = Generator[Exchange, None, torch.Tensor]


class SumChannel:
    """One sum at a time. `feedback = False` codes what it is given, without a residual."""

    # What outlives a change of membership; what this rank has kept of its sums does not.
    COMMON = ("count", "reference", "memories")
    OWN = ("unsent",)

    def __init__(self, wire: Wire, number: int, *, feedback: bool, in_model: bool = False):
        assert wire.context.flat is not None
        self.wire, self.context, self.number = wire, wire.context, number
        self.flat = wire.context.flat
        self.feedback = wire.feedback if feedback else 0.0
        self.in_model = in_model and self.feedback > 0.0
        self.shapes = tuple(tuple(s.shape) for s in self.flat.slices)
        self.count = 0  # sums so far
        self.reference: torch.Tensor | None = None  # the model to which a sync takes differences, if it has no own
        self.residual: torch.Tensor | None = None  # e; what a linear wire codes, while its sum is in flight
        self.sum_residuals: dict[int, torch.Tensor] = {}  # of the sums that this rank codes, by start of the part
        self.memories: dict[int, Any] = {}  # of the wire, by start of the part
        # Of the sum in flight: start, stop, weights, and what was sent where a wire has codes.
        self._flight: tuple[int, int, list[float], list[torch.Tensor] | None] | None = None
        self._stages: Summation | None = None
        self._pending: Pending | None = None
        self._done = 0  # exchanges of it that are over
        self._total: torch.Tensor | None = None  # its result, once it is known
        self._totals: list[float] = []
        self._ended: tuple[int, int, float] | None = None  # start, stop and own weight of a sum whose residual is left
        self._cost = Deferred()
        self._memory: torch.Tensor | None = None

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
        start, stop, *_ = self._flight
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
        """The sums over workers of what the wire made of the vectors (float32), and of the weights; see `end`.

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
        finite, on_cpu = True, vector.device.type == "cpu"
        for part, given in zip(torch.split(coded, CACHED), torch.split(vector, CACHED), strict=True):
            if self.feedback == 0.0:
                part.copy_(given)
            elif self.feedback == 1.0:
                part.add_(given)
            else:
                part.mul_(self.feedback).add_(given)
            finite = finite and (not on_cpu or is_finite(part))  # while it is in the cache
        if not (finite and (on_cpu or is_finite(coded))):
            coded.fill_(torch.nan)  # all workers must notice, whatever the wire leaves out
        self._launch(start, start + len(vector), weights)

    @torch.no_grad()
    def advance(self, elapsed: float = 1.0) -> None:
        """Begin the exchanges that are due when this part of the time for the sum has passed."""
        while self._flight is not None and self._done < min(int(self.exchanges * elapsed), self.exchanges - 1):
            self._next()

    @torch.no_grad()
    def end(self) -> tuple[torch.Tensor, list[float]]:
        """The sum in flight, which stays valid until the next one ends, and the sums of the weights."""
        assert self._flight is not None, "no sum is in flight"
        while self._total is None:
            self._next()
        total = self._total
        start, stop, weights, _ = self._flight
        self._ended = (start, stop, weights[0]) if self.in_model else None
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

    def take_residual(self, progress: torch.Tensor) -> torch.Tensor:
        """What the last message left out of this worker's progress: all of it at weight 0. It leaves the channel."""
        assert self.residual is not None
        assert self._ended is not None, "no sum of this channel has ended"
        (start, stop, weight), self._ended = self._ended, None
        left = self.residual[start:stop]
        taken = left * (self.feedback / weight) if weight else progress * self.feedback
        left.zero_()
        return taken

    def drop(self) -> None:
        """Discard a sum in flight; all workers must do so together."""
        if self._pending is not None:
            self._pending.wait()
        self._pending = self._stages = self._flight = self._total = None

    def forget(self) -> None:
        """Forget what was left out, and the reference; all workers do so together."""
        self.reference = self.residual = None
        self.sum_residuals, self.memories = {}, {}

    def state(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "reference": self.reference,
            "residual": self.residual if self.in_flight or (self.feedback and not self.in_model) else None,
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
    def _launch(self, start: int, stop: int, weights: list[float], codes: list[torch.Tensor] | None = None) -> None:
        assert self.residual is not None
        coded = self.residual[start:stop]
        self._flight, self._cost, self._done = (start, stop, weights, codes), Deferred(), -1
        worker = self.context.worker
        draw = Draw(worker.seed, worker.rank, self.number, self.count)
        if isinstance(self.wire, LinearWire):
            self._stages = self._sum_linear(self.wire, coded, pieces_of(self.shapes, start, stop), draw)
        else:
            assert isinstance(self.wire, RowWire)
            gathers = self.wire.collective() == "all-gather"
            if codes is None:
                length, parts = self.wire.divided(stop - start, 1 if gathers else self.context.size)
                source = draw.source(coded.device)
                codes = self.wire.encode_rows(coded, length, parts, source, subtract=self.feedback > 0.0)
                self._flight = (start, stop, weights, codes)
            summed = self._gather_codes if gathers else self._scatter_codes
            self._stages = summed(self.wire, codes, stop - start, draw)
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

    def _scatter_codes(self, wire: RowWire, codes: list[torch.Tensor], elements: int, draw: Draw) -> Summation:
        """Codes of chunks to their ranks, sums in float32, codes of the sums to all workers."""
        rank, others, start = self.context.rank, self._others(), self._start
        length, parts = wire.divided(elements, self.context.size)
        tail, result = self._tail(torch.uint8), self._result(elements)
        sums = [result[first * length : last * length] for first, last in parts]
        received = {p: codes[rank].new_empty(len(codes[rank]) + len(tail)) for p in others}
        yield {p: torch.cat((codes[p], tail)) for p in others}, received
        self._add_weights({p: message[-len(tail) :] for p, message in received.items()})
        total = torch.zeros_like(sums[rank])
        own = [codes[p] if p == rank else received[p][: -len(tail)] for p in range(self.context.size)]
        wire.add_decoded_rows(own, total, length, 1.0)
        if self.feedback and start in self.sum_residuals:
            total.add_(self.sum_residuals[start], alpha=self.feedback)
        rows, source = [(0, parts[rank][1] - parts[rank][0])], draw._replace(stage=1).source(total.device)
        [back] = wire.encode_rows(total, length, rows, source, subtract=self.feedback > 0.0)
        messages = {p: torch.empty_like(codes[p]) for p in others if len(codes[p])}
        yield dict.fromkeys(others, back) if len(back) else {}, messages
        for p, message in (messages | {rank: back}).items():
            wire.add_decoded_rows([message], sums[p].zero_(), length, 1.0)
        if self.feedback:
            self.sum_residuals[start] = total
        return result

    def _gather_codes(self, wire: RowWire, codes: list[torch.Tensor], elements: int, draw: Draw) -> Summation:
        """Codes to all workers, who sum what they decode."""
        [code], tail, length = codes, self._tail(torch.uint8), wire.length_for(elements)
        message = torch.cat((code, tail))
        received = {p: torch.empty_like(message) for p in self._others()}
        yield dict.fromkeys(received, message), received
        self._add_weights({p: row[-len(tail) :] for p, row in received.items()})
        result = self._result(elements).zero_()
        all_codes = [code if p == self.context.rank else received[p][: -len(tail)] for p in range(self.context.size)]
        wire.add_decoded_rows(all_codes, result, length, 1.0)
        return result

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
                memory = over.value
                break
        result = self._result(len(coded))
        wire.expand(sums, result, pieces, draw)
        if memory is not None:
            self.memories[start] = memory
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

    def _result(self, elements: int) -> torch.Tensor:
        """Memory for a sum; it is the same in every round."""
        if self._memory is None:
            self._memory = torch.empty(len(self.flat), dtype=torch.float32, device=self.flat.x.device)
        return self._memory[:elements]

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
        received = dict(zip(tails, unpack_rows(list(tails.values())), strict=True))
        rows = [received.get(p, self._flight[2]) for p in range(self.context.size)]
        self._totals = [sum_in_order(list(column)) for column in zip(*rows, strict=True)]


def sum_cost(
    model: ModelSize, weights: int, rank: int, size: int, start: int = 0, stop: int | None = None
) -> tuple[int, int]:
    """Messages and bytes that `rank` sends for the sum of a part of the model with so many weights."""
    assert model.wire is not None
    stop = model.elements if stop is None else stop
    messages, bytes = model.wire.sum_cost(stop - start, pieces_of(model.shapes, start, stop), rank, size)
    return messages, bytes + 8 * weights * (size - 1)
