"""Which worker do the others wait for? The error of a failed call points at whoever noticed.

What is certain comes first: a worker that reported its own failure, a process of this machine that is gone or stopped.
Then heartbeats tell: they stopped, or they go on while the worker makes no call. All workers tell of the same one: the
first to find it settles it, for whoever gives up leaves too, and looks missing to those who look later.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from . import heartbeat
from .heartbeat import Beat, Heartbeat
from .last_word import FAILED, LOST, RAISES

_BEATS = 3  # of this worker, in which another one must move
_STOPPED = "does not respond (stopped or hung)"
_ALONE = "does not respond, and nor does any other worker (is this host cut off from theirs?)"


class StoreLost(Exception):
    """The store does not answer: nothing can be known of the others."""


class Missing(NamedTuple):
    rank: int
    step: int  # the last that was published
    status: str  # in words

    @classmethod
    def parse(cls, text: str) -> Missing:
        rank, step, status = text.split(" ", 2)
        return cls(int(rank), int(step), status)


def find_missing(beat: Heartbeat, *, closed: bool = False) -> Missing | None:
    """The worker that the others wait for, if it can be told. closed: a connection was closed, so one has died.

    Raises `StoreLost` where the store is gone and no worker of this machine is.
    """
    processes: dict[int, int] = {}
    try:
        if (settled := beat.settled()) is not None:
            return Missing.parse(settled)
        processes = beat.local_processes()
        found = certain(beat.read(), processes, beat.rank)
        if found is None:
            first = beat.read()
            _let_beat(beat)
            found = likely(first, beat.read(), processes, beat.rank, closed=closed)
        return None if found is None else Missing.parse(beat.settle(" ".join(map(str, found))))
    except Exception as error:  # the store is gone, perhaps with the worker that hosts it
        gone = [rank for rank, pid in processes.items() if state_of(pid) == "gone" and rank != beat.rank]
        if not gone:
            raise StoreLost(str(error)) from error
        return Missing(gone[0], 0, "has died")


def _let_beat(beat: Heartbeat) -> None:
    """Wait for a few beats of this worker: where processes have to wait for a processor, it has to wait too."""
    started, until = beat.beats, time.monotonic() + 5 * _BEATS * heartbeat.INTERVAL
    while beat.beats < started + _BEATS and time.monotonic() < until:
        time.sleep(heartbeat.INTERVAL / 5)


def certain(beats: list[Beat | None], processes: dict[int, int], own: int) -> Missing | None:
    """A worker whose failure needs no second look."""
    others = {rank: beat for rank, beat in enumerate(beats) if rank != own and beat is not None}
    failed = {rank: beat for rank, beat in others.items() if beat.ending.startswith((FAILED, RAISES))}
    if failed:
        return _first(failed, "")
    running = {rank: beat for rank, beat in others.items() if not beat.ending}
    states = {rank: state_of(processes[rank]) for rank in running if rank in processes}
    for state, status in (("gone", "has died"), ("stopped", _STOPPED)):
        found = {rank: beat for rank, beat in running.items() if states.get(rank) == state}
        if found:
            return _first(found, status)
    return None


def likely(
    first: list[Beat | None], second: list[Beat | None], processes: dict[int, int], own: int, *, closed: bool
) -> Missing | None:
    """From beats a moment apart, where nothing is certain."""
    for rank, after in enumerate(second):
        if after is None:
            return Missing(rank, 0, "never joined")
    found = certain(second, processes, own)
    if found is not None:
        return found
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    pairs_of_others = {rank: pair for rank, pair in enumerate(pairs) if rank != own}
    running = {rank: (a, b) for rank, (a, b) in pairs_of_others.items() if not b.ending}
    silent = {rank: b for rank, (a, b) in running.items() if a.beats == b.beats}
    if silent:
        far = not set(silent) & set(processes)
        if far and not closed and 1 < len(silent) == len(running):
            return _first(silent, _ALONE)
        return _first(silent, "has died" if closed and far else _STOPPED)
    still = {rank: b for rank, (a, b) in running.items() if a.calls == b.calls}
    outside = {rank: b for rank, b in still.items() if not b.inside}
    if outside:
        return _first(outside, "hangs outside of communication")
    ended = {rank: b for rank, (_, b) in pairs_of_others.items() if b.ending and not b.ending.startswith(LOST)}
    if ended:
        return _first(ended, "")
    behind = {rank: b for rank, b in still.items() if b.calls < pairs[own][1].calls}
    if behind:
        return _first(behind, "waits in another call: all workers must make the same calls in the same order")
    return None


def _first(suspects: dict[int, Beat], status: str) -> Missing:
    """Of several the one with the fewest calls: a launcher that misses one worker ends the others."""
    rank = min(suspects, key=lambda r: suspects[r].calls)
    return Missing(rank, suspects[rank].step, status or suspects[rank].ending)


def state_of(pid: int) -> str:
    """`runs`, `stopped` or `gone`. A child that has ended stays a zombie until its parent asks."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            letter = file.read().rpartition(b")")[2].split()[:1]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
    if letter in ([], [b"Z"], [b"X"]):
        return "gone"
    return "stopped" if letter in ([b"T"], [b"t"]) else "runs"
