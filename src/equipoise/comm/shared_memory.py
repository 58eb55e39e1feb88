"""Large tensors between workers of one host, through shared memory.

gloo sends all data through sockets, also between processes of one host. Here the payload is written once to anonymous
shared memory and read by all receivers; `notices` announce and acknowledge it.

Workers in different network namespaces count as different hosts: a simulated network must carry their messages.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .base import Stream
from .fused_reduction import FusedReduction, chunks, sum_columns, sum_rows
from .notices import CounterNotices, GlooNotices, Notices
from .segment import Segment

LEAST = 1 << 16  # bytes; smaller tensors are as fast on the socket
_PIECE = 1 << 21  # elements summed at once: bounds the memory
_LINE = 16  # elements: chunks aligned to cache lines are read and written faster


def host_id() -> str:
    """Equal for processes that can share memory; empty where sharing is not possible."""
    if not hasattr(os, "memfd_create") or os.environ.get("EQUIPOISE_SHARED_MEMORY") == "0":
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/net')}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


@dataclass
class Expected:
    """A message that a peer will announce."""

    announced: Callable[[], tuple[int, int]]  # waits for it; the handle of the peer's segment, and its bytes
    out: torch.Tensor
    read: bool = False


class SharedMemory:
    """One worker's access to shared memory: peers on the same host, its own segments, and those of peers."""

    def __init__(
        self,
        rank: int,
        size: int,
        gather_objects: Callable[[Any], list[Any]],
        timeout: float,
        given_up: Callable[[], bool] = bool,
        otherwise: GlooNotices | None = None,
    ):
        self.rank, self.size, self._gather_objects = rank, size, gather_objects
        rows = gather_objects((host_id(), os.getpid()))
        here = rows[rank][0]
        self.pids = {r: pid for r, (host, pid) in enumerate(rows) if host and host == here}  # of this host, by rank
        self.all_local = len(self.pids) == size
        self._notices = self._make_notices(timeout, given_up) or otherwise or GlooNotices()
        self._own: dict[int, list[Segment]] = {}  # by size, the least recently used first
        self._mapped: dict[tuple[int, int], Segment] = {}  # of peers, by rank and handle
        self._expected: dict[int, deque[Expected]] = {}  # by peer: messages not yet read, in order
        self._borrowed: set[int] = set()  # peers whose memory is being read in place
        self._owed: dict[int, int] = {}  # by peer: acknowledgements due after that of the borrowed message
        self._sum_segments: list[Segment] = []  # one per rank: inputs first,
        self._totals = 0  # and from this byte on the chunk that its owner has summed
        self._gather_segments: list[Segment] = []  # one per rank: two halves, used alternately,
        self._half_bytes = 0  # of this size,
        self._last_half = 0  # this one used last

    def _make_notices(self, timeout: float, given_up: Callable[[], bool]) -> Notices | None:
        """Counters in shared memory, if every worker can use them with all others of its host."""
        board = CounterNotices.board(len(self.pids)) if self.pids and CounterNotices.possible() else None
        handles = self._gather_objects(board.handle if board is not None else None)
        boards: dict[int, Segment] = {}
        try:
            for peer, pid in self.pids.items():
                if board is not None and handles[peer] is not None:
                    boards[peer] = board if peer == self.rank else Segment.of(pid, handles[peer], board.bytes)
        except OSError:  # no permission
            boards.clear()
        # Also a barrier: no owner may close its board before all have mapped it.
        if all(self._gather_objects(len(boards) == len(self.pids))) and boards:
            return CounterNotices(self.rank, boards, self.pids, timeout, given_up)
        return None

    def set_timeout(self, timeout: float) -> None:
        """How long to wait for another worker from now on."""
        if isinstance(self._notices, CounterNotices):
            self._notices.timeout = timeout

    def reaches(self, peer: int, tensor: torch.Tensor) -> bool:
        """Does a tensor travel through shared memory? Both ends decide alike, from what both know."""
        return peer in self.pids and tensor.device.type == "cpu" and tensor.numel() * tensor.element_size() >= LEAST

    # -- messages -------------------------------------------------------------------------------------------------
    def write(self, tensor: torch.Tensor) -> Segment:
        """Copy a tensor to shared memory."""
        bytes = tensor.numel() * tensor.element_size()
        ring = self._own.setdefault(bytes, [])
        # Waiting for the readers of a message cannot deadlock once its exchange has ended here. The older of two such
        # messages has been read in all but rare cases.
        ended = [segment for segment in ring if not segment.in_flight]
        if len(ended) >= 2:
            segment = ended[0]
            ring.remove(segment)
        else:
            segment = Segment.make(bytes)
        segment.reclaim()
        ring.append(segment)
        segment.in_flight = True
        segment.tensor(tensor).copy_(tensor.view(-1))
        return segment

    def announce(self, segment: Segment, peer: int) -> Callable[[], None]:
        """Tell a peer of a segment, which is free again once the peer has acknowledged it."""
        wait = self._notices.announce(segment, peer)
        segment.acknowledgements.append(self._notices.acknowledgement(peer))
        return wait

    def expect(self, peer: int, out: torch.Tensor) -> Expected:
        """The peer's next announcement is of the message for `out`."""
        expected = Expected(self._notices.expect(peer), out)
        self._expected.setdefault(peer, deque()).append(expected)
        return expected

    def read(self, peer: int, expected: Expected) -> torch.Tensor:
        """An expected message without a copy; earlier ones are copied to their destinations.

        Messages are read in the order they were sent, whichever is waited for first, because an acknowledgement counts
        for the oldest. For the same reason one message per peer is read in place at a time, and a second one is copied.
        """
        while not expected.read:
            first = self._expected[peer].popleft()
            view = self._map(peer, *first.announced(), first.out)
            first.read = True
            if first is expected and peer not in self._borrowed:
                self._borrowed.add(peer)
                return view
            first.out.view(-1).copy_(view)
            if peer in self._borrowed:
                self._owed[peer] = self._owed.get(peer, 0) + 1
            else:
                self._notices.acknowledge(peer)
        return expected.out

    def _map(self, peer: int, handle: int, bytes: int, out: torch.Tensor) -> torch.Tensor:
        key = (peer, handle)
        if key not in self._mapped:
            self._mapped[key] = Segment.of(self.pids[peer], handle, bytes)
        return self._mapped[key].tensor(out)

    def release(self, peer: int) -> None:
        """Acknowledge the message of a peer that was read in place, and those copied meanwhile."""
        self._borrowed.discard(peer)
        for _ in range(1 + self._owed.pop(peer, 0)):
            self._notices.acknowledge(peer)

    # -- sums -----------------------------------------------------------------------------------------------------
    def sums(self, bytes: int, device: torch.device) -> bool:
        """Is a sum of so many bytes taken in shared memory? All workers decide alike."""
        return self.all_local and bytes >= LEAST and device.type == "cpu"

    def sum(self, tensor: torch.Tensor) -> None:
        """The sum over all workers in rank order, in place."""
        flat = tensor.view(-1)
        self.sum_stream(
            Stream(
                len(flat),
                flat.dtype,
                flat.device,
                lambda start, out: out.copy_(flat[start : start + len(out)]),
                lambda start, total: flat[start : start + len(total)].copy_(total),
            )
        )

    def sum_stream(self, stream: Stream) -> None:
        """As `sum`, a bounded piece at a time."""
        for start in reversed(range(0, stream.elements, _PIECE)):
            self._sum(stream, start, min(_PIECE, stream.elements - start))

    def _sum(self, stream: Stream, begin: int, count: int) -> None:
        """Every worker sums one chunk, then reads the chunks of all.

        Two barriers are enough. Inputs are read between them, and a worker that writes new ones has passed the second;
        chunks are read after the second, and a worker that writes new ones has passed the first of the next sum.
        """
        item, dtype = stream.dtype.itemsize, stream.dtype
        chunk = -(-count // (self.size * _LINE)) * _LINE
        bounds = [(min(r * chunk, count), min((r + 1) * chunk, count)) for r in range(self.size)]
        if count * item > self._totals:
            self._make_sum_segments(count * item)
        own = self._sum_segments[self.rank]
        stream.fill(begin, own.view(count, dtype))
        self._notices.barrier()
        start, stop = bounds[self.rank]
        if stop > start:
            total = own.view(stop - start, dtype, self._totals)
            rows = [segment.view(stop - start, dtype, start * item) for segment in self._sum_segments]
            sum_rows(rows, total)
        self._notices.barrier()
        for segment, (start, stop) in reversed(list(zip(self._sum_segments, bounds, strict=True))):
            if stop > start:
                stream.take(begin + start, segment.view(stop - start, dtype, self._totals))

    def fused_sum(self, flat: torch.Tensor, reduction: FusedReduction) -> tuple[list[list[float]], list[float]]:
        """As `_sum`; the worker that sums a chunk also computes its statistics, in place."""
        item, size, rank = flat.element_size(), self.size, self.rank
        vector_at = _aligned(flat.numel() * item)  # the first byte of the second vector,
        metadata_at = vector_at + _aligned(reduction.extra * item)  # and of the metadata
        statistics_at = _aligned(-(-flat.numel() // size) * item)  # after the chunk
        # Behind the inputs there are `inputs / size` bytes, which must hold the chunk and its statistics.
        inputs = max(metadata_at + 8 * len(reduction.metadata), size * (statistics_at + 8 * reduction.outputs))
        if inputs > self._totals:
            self._make_sum_segments(inputs)
        segments, bounds = self._sum_segments, chunks(flat.numel(), size)
        own = segments[rank]
        own.tensor(flat).copy_(flat)
        if reduction.vector is not None:
            own.tensor(reduction.vector, vector_at).copy_(reduction.vector)
        own_metadata = torch.tensor(reduction.metadata, dtype=torch.float64)
        own.tensor(own_metadata, metadata_at).copy_(own_metadata)
        self._notices.barrier()
        start, stop = bounds[rank]
        rows = [segment.tensor(flat[start:stop], start * item) for segment in segments]
        metadata = [segment.tensor(own_metadata, metadata_at).tolist() for segment in segments]
        if reduction.vector is not None:
            a, b = chunks(reduction.extra, size)[rank]
            vectors = [segment.tensor(reduction.vector[a:b], vector_at + a * item) for segment in segments]
            statistics = reduction.map_chunk(vectors, metadata, a)
        else:
            statistics = reduction.map_chunk(rows, metadata, start)
        sum_rows(rows, own.tensor(flat[start:stop], self._totals))
        numbers = torch.tensor(statistics, dtype=torch.float64)
        own.tensor(numbers, self._totals + statistics_at).copy_(numbers)
        self._notices.barrier()
        partials = []
        for segment, (start, stop) in zip(segments, bounds, strict=True):
            flat[start:stop].copy_(segment.tensor(flat[start:stop], self._totals))
            partials.append(segment.tensor(numbers, self._totals + statistics_at).tolist())
        return metadata, sum_columns(partials)

    # -- gathers --------------------------------------------------------------------------------------------------
    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """All workers' tensors, stacked by rank, with one barrier.

        A worker that writes to a half again has passed the barrier of the other half, and so have all readers of this
        one.
        """
        flat = tensor.reshape(-1)
        bytes = flat.numel() * flat.element_size()
        if bytes > self._half_bytes:
            self._half_bytes = _aligned(bytes)
            self._gather_segments = self._make_and_map(2 * self._half_bytes)
        self._last_half = 1 - self._last_half
        start = self._last_half * self._half_bytes
        self._gather_segments[self.rank].tensor(flat, start).copy_(flat)
        self._notices.barrier()
        out = tensor.new_empty((self.size, *tensor.shape))
        for row, segment in zip(out.view(self.size, -1), self._gather_segments, strict=True):
            row.copy_(segment.tensor(flat, start))
        return out

    def _make_sum_segments(self, inputs: int) -> None:
        # Chunks start at the same byte for vectors of all lengths: the input of the next sum must not overwrite a chunk
        # of this one that another worker has not read yet.
        self._totals = _aligned(inputs)
        self._sum_segments = self._make_and_map(self._totals + -(-self._totals // self.size) + 8 * _LINE + 64)

    def _make_and_map(self, bytes: int) -> list[Segment]:
        """A new segment of every worker, by rank."""
        own = Segment.make(bytes)
        handles = self._gather_objects(own.handle)
        segments = [own if r == self.rank else Segment.of(self.pids[r], h, bytes) for r, h in enumerate(handles)]
        self._gather_objects(None)  # a barrier: no owner may close its old segment before all have mapped the new one
        return segments


def _aligned(bytes: int) -> int:
    return -(-bytes // 64) * 64
