"""Large tensors between workers of one host, through memory that both can see.

gloo sends everything through a socket, also to a process next door. Here the payload is written once to anonymous shared
memory and read by whoever needs it; small tokens on gloo say when, so that order, time-outs and the naming of a missing
worker stay those of gloo. The memory belongs to the process that made it and goes with it, however it ends.

Workers in different network namespaces count as different hosts: what is measured there must cross the network.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .base import Stream
from .fused_reduction import FusedReduction, chunks, sum_columns, sum_rows

LEAST = 1 << 16  # bytes; smaller tensors are as fast on the socket
_PIECE = 1 << 21  # elements summed at once: bounds the memory it takes
_LINE = 16  # elements: chunks that begin with a line of the cache are read and written faster
_TOKEN, _ACK = 101, 102  # tags on gloo


def place() -> str:
    """Where this process runs, equal for processes that can share memory; empty where sharing is not possible."""
    if not hasattr(os, "memfd_create") or os.environ.get("EQUIPOISE_SHARED_MEMORY") == "0":
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/net')}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


class Segment:
    """Memory of this process that others can map, or of another one, mapped here."""

    def __init__(self, handle: int, bytes: int):
        self.handle = handle
        self.memory = mmap.mmap(handle, bytes)
        self.bytes = bytes
        self.waiting: list[tuple[Any, torch.Tensor]] = []  # acknowledgements still to come, with their buffers

    @classmethod
    def make(cls, bytes: int) -> Segment:
        handle = os.memfd_create("equipoise")
        os.ftruncate(handle, bytes)
        return cls(handle, bytes)

    @classmethod
    def of(cls, pid: int, handle: int, bytes: int) -> Segment:
        return cls(os.open(f"/proc/{pid}/fd/{handle}", os.O_RDWR), bytes)

    def __del__(self) -> None:
        os.close(self.handle)

    def tensor(self, like: torch.Tensor, start: int = 0) -> torch.Tensor:
        """This memory as a flat tensor as large as `like`, from byte `start`."""
        return self.view(like.numel(), like.dtype, start)

    def view(self, count: int, dtype: torch.dtype, start: int = 0) -> torch.Tensor:
        """`count` elements from byte `start` on."""
        if count == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self.memory, dtype=dtype, count=count, offset=start)

    def reclaim(self) -> None:
        """Wait until everybody has read what was written here."""
        for work, _ in self.waiting:
            work.wait()
        self.waiting = []


@dataclass
class Expected:
    """A message that a peer will announce by a token."""

    work: Any
    token: torch.Tensor
    out: torch.Tensor
    read: bool = False


class SharedMemory:
    """The shared memory of one worker: who is within reach, what it wrote, what it mapped."""

    def __init__(self, rank: int, size: int, gather_objects: Callable[[Any], list[Any]]):
        self.rank, self.size, self._gather_objects = rank, size, gather_objects
        rows = gather_objects((place(), os.getpid()))
        here = rows[rank][0]
        self.pids = {r: pid for r, (where, pid) in enumerate(rows) if where and where == here}
        self.everybody = len(self.pids) == size
        self.under_way = 0  # tensors of exchanges begun and not waited for
        self._own: dict[int, list[Segment]] = {}  # by size, the least recently used first
        self._others: dict[tuple[int, int], Segment] = {}
        self._due: dict[int, deque[Any]] = {}  # messages that a peer has still to send or this worker to read, in order
        self._lent: set[int] = set()  # peers whose memory is being read in place
        self._owed: dict[int, int] = {}  # acknowledgements that must follow that of the lent message
        self._table: list[Segment] = []  # one segment per worker, for sums: inputs first,
        self._totals = 0  # and from this byte on the chunk that its owner has summed
        self._halves: list[Segment] = []  # one segment per worker, for gathers: its two halves are used in turn,
        self._half = 0  # so many bytes each,
        self._turn = 0  # this one last

    def reaches(self, peer: int, tensor: torch.Tensor) -> bool:
        """Both ends answer alike, from what both know."""
        return peer in self.pids and tensor.device.type == "cpu" and tensor.numel() * tensor.element_size() >= LEAST

    # -- messages -------------------------------------------------------------------------------------------------
    def write(self, tensor: torch.Tensor, before: int = 0) -> Segment:
        """Put a tensor where peers can read it; the same exchange has written `before` others."""
        bytes = tensor.numel() * tensor.element_size()
        ring = self._own.setdefault(bytes, [])
        # Two more than are under way: the oldest then belongs to an exchange that is over at this end, so that waiting for
        # its readers cannot make two workers wait for each other.
        segment = ring.pop(0) if len(ring) >= self.under_way + before + 2 else Segment.make(bytes)
        segment.reclaim()
        ring.append(segment)
        segment.tensor(tensor).copy_(tensor.view(-1))
        return segment

    def announce(self, segment: Segment, peer: int) -> tuple[Any, torch.Tensor]:
        """Tell a peer what to read; the segment is free again once it said that it has."""
        token, answer = torch.tensor([segment.handle, segment.bytes]), torch.empty(1, dtype=torch.int64)
        work = dist.isend(token, peer, tag=_TOKEN)
        segment.waiting.append((dist.irecv(answer, peer, tag=_ACK), answer))
        return work, token

    def expect(self, peer: int, out: torch.Tensor) -> Expected:
        """What the peer's next token announces belongs to `out`."""
        token = torch.empty(2, dtype=torch.int64)
        expected = Expected(dist.irecv(token, peer, tag=_TOKEN), token, out)
        self._due.setdefault(peer, deque()).append(expected)
        return expected

    def read(self, peer: int, expected: Expected) -> torch.Tensor:
        """An expected message where it lies; those before it are copied to their places.

        In the order they were sent, whichever is waited for first: the peer takes an acknowledgement for that of the oldest.
        For the same reason one message of a peer is lent at a time, and one that would be the second is copied.
        """
        while not expected.read:
            first = self._due[peer].popleft()
            first.work.wait()
            first.read = True
            view = self._map(peer, first)
            if first is expected and peer not in self._lent:
                self._lent.add(peer)
                return view
            first.out.view(-1).copy_(view)
            if peer in self._lent:
                self._owed[peer] = self._owed.get(peer, 0) + 1
            else:
                self._acknowledge(peer)
        return expected.out

    def _map(self, peer: int, expected: Expected) -> torch.Tensor:
        handle, bytes = expected.token.tolist()
        key = (peer, handle)
        if key not in self._others:
            self._others[key] = Segment.of(self.pids[peer], handle, bytes)
        return self._others[key].tensor(expected.out)

    def give_back(self, peer: int) -> None:
        """The lent message of a peer has been read, and with it those that were copied meanwhile."""
        self._lent.discard(peer)
        for _ in range(1 + self._owed.pop(peer, 0)):
            self._acknowledge(peer)

    def _acknowledge(self, peer: int) -> None:
        answer = torch.zeros(1, dtype=torch.int64)
        work = dist.isend(answer, peer, tag=_ACK)
        assert work is not None, "this worker is of the group"
        work.wait()

    # -- sums -----------------------------------------------------------------------------------------------------
    def sums(self, bytes: int, device: torch.device) -> bool:
        """Is a sum of so many bytes taken here? All workers answer alike."""
        return self.everybody and bytes >= LEAST and device.type == "cpu"

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
        """A bounded chunk at a time."""
        for start in reversed(range(0, stream.elements, _PIECE)):
            self._sum(stream, start, min(_PIECE, stream.elements - start))

    def _sum(self, stream: Stream, begin: int, count: int) -> None:
        """Everybody sums one chunk, everybody collects the chunks.

        Two barriers are enough. Inputs are read between them, and whoever writes new ones has passed the second; chunks are
        read after the second, and whoever writes new ones has passed the next first.
        """
        item, dtype = stream.dtype.itemsize, stream.dtype
        chunk = -(-count // (self.size * _LINE)) * _LINE
        bounds = [(min(r * chunk, count), min((r + 1) * chunk, count)) for r in range(self.size)]
        if count * item > self._totals:
            self._share_table(count * item)
        mine = self._table[self.rank]
        stream.fill(begin, mine.view(count, dtype))
        dist.barrier()
        start, stop = bounds[self.rank]
        if stop > start:
            total = mine.view(stop - start, dtype, self._totals)
            first, *others = [segment.view(stop - start, dtype, start * item) for segment in self._table]
            total.copy_(first)
            for other in others:
                total += other
        dist.barrier()
        for segment, (start, stop) in reversed(list(zip(self._table, bounds, strict=True))):
            if stop > start:
                stream.take(begin + start, segment.view(stop - start, dtype, self._totals))

    def fused_sum(self, flat: torch.Tensor, reduction: FusedReduction) -> tuple[list[list[float]], list[float]]:
        """As `_sum`; the worker that sums a chunk also computes its statistics, in place."""
        item, size, mine = flat.element_size(), self.size, self.rank
        extra = _aligned(flat.numel() * item)  # where the second vector begins,
        metadata_at = extra + _aligned(reduction.extra * item)  # and where the metadata does
        statistics_at = _aligned(-(-flat.numel() // size) * item)  # behind the chunk
        # What follows the inputs is one part in `size` as long: it must hold the chunk and its statistics.
        inputs = max(metadata_at + 8 * len(reduction.metadata), size * (statistics_at + 8 * reduction.outputs))
        if inputs > self._totals:
            self._share_table(inputs)
        own, bounds = self._table[mine], chunks(flat.numel(), size)
        own.tensor(flat).copy_(flat)
        if reduction.vector is not None:
            own.tensor(reduction.vector, extra).copy_(reduction.vector)
        note = torch.tensor(reduction.metadata, dtype=torch.float64)
        own.tensor(note, metadata_at).copy_(note)
        dist.barrier()
        start, stop = bounds[mine]
        rows = [other.tensor(flat[start:stop], start * item) for other in self._table]
        everybody = [other.tensor(note, metadata_at).tolist() for other in self._table]
        if reduction.vector is not None:
            a, b = chunks(reduction.extra, size)[mine]
            looked = [other.tensor(reduction.vector[a:b], extra + a * item) for other in self._table]
            found = reduction.map_chunk(looked, everybody, a)
        else:
            found = reduction.map_chunk(rows, everybody, start)
        sum_rows(rows, own.tensor(flat[start:stop], self._totals))
        numbers = torch.tensor(found, dtype=torch.float64)
        own.tensor(numbers, self._totals + statistics_at).copy_(numbers)
        dist.barrier()
        partials = []
        for other, (start, stop) in zip(self._table, bounds, strict=True):
            flat[start:stop].copy_(other.tensor(flat[start:stop], self._totals))
            partials.append(other.tensor(numbers, self._totals + statistics_at).tolist())
        return everybody, sum_columns(partials)

    # -- gathers --------------------------------------------------------------------------------------------------
    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Everybody's tensor, stacked by rank, for one barrier.

        Whoever writes to a half again has passed the barrier of the other half, and so has everybody who read this one.
        """
        flat = tensor.reshape(-1)
        bytes = flat.numel() * flat.element_size()
        if bytes > self._half:
            self._half = _aligned(bytes)
            self._halves = self._made_and_mapped(2 * self._half)
        self._turn = 1 - self._turn
        start = self._turn * self._half
        self._halves[self.rank].tensor(flat, start).copy_(flat)
        dist.barrier()
        out = tensor.new_empty((self.size, *tensor.shape))
        for row, other in zip(out.view(self.size, -1), self._halves, strict=True):
            row.copy_(other.tensor(flat, start))
        return out

    def _share_table(self, inputs: int) -> None:
        # Chunks begin at one place for vectors of all lengths: a worker that goes on to the next sum must not write its
        # input over a chunk of this one that another has still to read.
        self._totals = -(-inputs // 64) * 64
        self._table = self._made_and_mapped(self._totals + -(-self._totals // self.size) + 8 * _LINE + 64)

    def _made_and_mapped(self, bytes: int) -> list[Segment]:
        """A new segment of every worker, by rank."""
        own = Segment.make(bytes)
        rows = self._gather_objects(own.handle)
        found = [own if r == self.rank else Segment.of(self.pids[r], handle, bytes) for r, handle in enumerate(rows)]
        self._gather_objects(None)  # nobody maps a segment that its owner has dropped already
        return found


def _aligned(bytes: int) -> int:
    return -(-bytes // 64) * 64
