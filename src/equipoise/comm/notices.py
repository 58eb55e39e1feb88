"""Notices between workers of one host: "a message for you is in shared memory", "I have read it", "I am here".

Two ways. `GlooNotices` sends them as small messages: always possible, but each one wakes a thread of gloo on both
sides, which costs more than a copy of a megabyte. `CounterNotices` counts in shared memory and sleeps on a futex of
Linux until a counter has moved. Python has no memory fence, so it needs a processor that keeps the order of stores
(x86).
"""

from __future__ import annotations

import ctypes
import platform
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .diagnosis import state_of
from .segment import Segment

_TOKEN, _ACK = 101, 102  # tags of messages on gloo
_FUTEX, _WAIT, _WAKE = 202, 0, 1  # the system call on x86-64, and its operations
_SLOTS = 64  # announcements to one peer that may be unread
_LINE = 16  # words of a cache line
_LOOK = 0.2  # seconds of sleep after which a worker checks that the one it waits for is alive
_EVERY = 2**31 - 1  # wake all who wait

Wait = Callable[[], None]


class Notices(ABC):
    """Notices of one worker. Between two workers they keep their order."""

    @abstractmethod
    def announce(self, segment: Segment, peer: int) -> Wait:
        """Tell a peer that a segment holds a message for it; the result waits until that has been sent."""

    @abstractmethod
    def acknowledgement(self, peer: int) -> Wait:
        """A wait until the peer has read the message announced last."""

    @abstractmethod
    def expect(self, peer: int) -> Callable[[], tuple[int, int]]:
        """A wait for the peer's next announcement: the handle of its segment, and its bytes."""

    @abstractmethod
    def acknowledge(self, peer: int) -> None:
        """Tell a peer that its oldest message not yet acknowledged has been read."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when all workers are here."""


class GlooNotices(Notices):
    def __init__(self, group: dist.ProcessGroup | None = None):
        self.group = group  # of torch.distributed; None: all of its processes
        self.ranks = dist.get_process_group_ranks(group)

    def announce(self, segment: Segment, peer: int) -> Wait:
        token = torch.tensor([segment.handle, segment.bytes])
        return _GlooWait(dist.isend(token, self.ranks[peer], self.group, _TOKEN), token)

    def acknowledgement(self, peer: int) -> Wait:
        answer = torch.empty(1, dtype=torch.int64)
        return _GlooWait(dist.irecv(answer, self.ranks[peer], self.group, _ACK), answer)

    def expect(self, peer: int) -> Callable[[], tuple[int, int]]:
        token = torch.empty(2, dtype=torch.int64)
        wait = _GlooWait(dist.irecv(token, self.ranks[peer], self.group, _TOKEN), token)

        def arrived() -> tuple[int, int]:
            wait()
            handle, bytes = token.tolist()
            return handle, bytes

        return arrived

    def acknowledge(self, peer: int) -> None:
        answer = torch.zeros(1, dtype=torch.int64)
        _GlooWait(dist.isend(answer, self.ranks[peer], self.group, _ACK), answer)()

    def barrier(self) -> None:
        dist.barrier(self.group)


@dataclass
class _GlooWait:
    """A wait for a message, with the buffer that must outlive it."""

    work: Any
    buffer: torch.Tensor

    def __call__(self) -> None:
        self.work.wait()


class CounterNotices(Notices):
    """One board per worker, written by its owner alone and mapped by all.

    For each peer a board has the number of messages announced to it, the number read from it, and the announcements
    themselves, a ring of slots. Counters are modulo 2^32.
    """

    def __init__(
        self,
        rank: int,
        boards: dict[int, Segment],
        pids: dict[int, int],
        timeout: float,
        given_up: Callable[[], bool] = bool,
    ):
        self.rank, self.boards, self.pids, self.timeout, self.given_up = rank, boards, pids, timeout, given_up
        self._places = {peer: _LINE + i * _PLACE for i, peer in enumerate(sorted(pids))}  # on every board, by peer
        self._words = {peer: memoryview(board.memory).cast("I") for peer, board in boards.items()}
        self._long = {peer: memoryview(board.memory).cast("Q") for peer, board in boards.items()}
        self._first = {peer: _address(board) for peer, board in boards.items()}
        self._own, self._mine = self._words[rank], self._places[rank]
        self._expected: Counter[int] = Counter()  # announcements asked for so far, by peer

    @staticmethod
    def possible() -> bool:
        return sys.platform == "linux" and platform.machine() == "x86_64"

    @staticmethod
    def board(workers: int) -> Segment:
        """A board for so many workers of one host."""
        return Segment.make(4 * (_LINE + workers * _PLACE))

    def announce(self, segment: Segment, peer: int) -> Wait:
        place = self._places[peer]
        count = self._own[place]
        read = self._mine + 1
        if not _reached(self._words[peer][read], count - _SLOTS + 1):
            self._sleep_until(peer, read, count - _SLOTS + 1)
        slot = _slot(place, count)
        self._long[self.rank][slot], self._long[self.rank][slot + 1] = segment.handle, segment.bytes
        self._publish(place, count + 1)
        return _nothing

    def acknowledgement(self, peer: int) -> Wait:
        count = self._own[self._places[peer]]
        return lambda: self._sleep_until(peer, self._mine + 1, count)

    def expect(self, peer: int) -> Callable[[], tuple[int, int]]:
        number = self._expected[peer]
        self._expected[peer] += 1

        def arrived() -> tuple[int, int]:
            self._sleep_until(peer, self._mine, number + 1)
            slot = _slot(self._mine, number)
            return self._long[peer][slot], self._long[peer][slot + 1]

        return arrived

    def acknowledge(self, peer: int) -> None:
        word = self._places[peer] + 1
        self._publish(word, self._own[word] + 1)

    def barrier(self) -> None:
        count = self._own[0] + 1
        self._publish(0, count)
        for peer in self.boards:
            if peer != self.rank:
                self._sleep_until(peer, 0, count)

    # -- counters ------------------------------------------------------------------------------------------------------
    def _publish(self, word: int, value: int) -> None:
        """Set a counter of this worker's board and wake who sleeps on it."""
        self._own[word] = value & 0xFFFFFFFF
        _system_call(_FUTEX, ctypes.c_void_p(self._first[self.rank] + 4 * word), _WAKE, _EVERY, None, None, 0)

    def _sleep_until(self, peer: int, word: int, target: int) -> None:
        """Return when a counter of a peer's board has reached `target`."""
        words, seen = self._words[peer], self._words[peer][word]
        if _reached(seen, target):
            return
        address, deadline = ctypes.c_void_p(self._first[peer] + 4 * word), time.monotonic() + self.timeout
        while not _reached(seen, target):
            began = time.monotonic()
            _system_call(_FUTEX, address, _WAIT, ctypes.c_uint32(seen), ctypes.byref(_NAP), None, 0)
            now, seen = time.monotonic(), words[word]
            if now - began < _LOOK or _reached(seen, target):
                continue
            if state_of(self.pids[peer]) == "gone" and not _reached(words[word], target):
                raise RuntimeError(f"worker {peer} has ended")
            if self.given_up():
                raise RuntimeError("another worker has been given up")
            if now > deadline:
                raise RuntimeError(f"timed out after {self.timeout:g} s waiting for worker {peer}")


_PLACE = _LINE + 4 * _SLOTS  # words of one peer on a board: announced, read; slots of two 64-bit numbers


class _Seconds(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_NAP = _Seconds(0, int(1e9 * _LOOK))
_system_call: Any = ctypes.CDLL(None).syscall if sys.platform == "linux" else None


def _slot(place: int, number: int) -> int:
    """Where an announcement is, in words of 64 bits."""
    return (place + _LINE) // 2 + 2 * (number % _SLOTS)


def _nothing() -> None:
    """Nothing to wait for."""


def _reached(value: int, target: int) -> bool:
    """value >= target, for counters modulo 2^32 that are less than 2^31 apart."""
    return (value - target) & 0xFFFFFFFF < 0x80000000


def _address(board: Segment) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(board.memory))
