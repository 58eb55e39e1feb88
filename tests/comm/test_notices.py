"""Notices through counters in shared memory, and through gloo where those are not possible."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.comm.notices import _SLOTS, CounterNotices, GlooNotices
from equipoise.comm.segment import Segment
from equipoise.comm.shared_memory import LEAST

from .workers import both, run

LARGE = LEAST // 4 + 3  # floats: a message that goes through shared memory
counters = pytest.mark.skipif(not CounterNotices.possible(), reason="no futex, or a processor that reorders stores")


def pair(first: int = 0, timeout: float = 5.0, pid: int | None = None) -> tuple[CounterNotices, CounterNotices]:
    """The notices of two workers in one process; their counters start at `first`."""
    boards = {rank: CounterNotices.board(2) for rank in (0, 1)}
    for board in boards.values():
        words = memoryview(board.memory).cast("I")
        for place in range(16, len(words), (len(words) - 16) // 2):
            words[place] = words[place + 1] = first
        words[0] = first
    pids = {0: os.getpid(), 1: pid or os.getpid()}
    made = [CounterNotices(rank, boards, pids, timeout) for rank in (0, 1)]
    for notices in made:
        notices._expected.update({0: first, 1: first})
    return made[0], made[1]


@counters
@pytest.mark.parametrize("first", [0, 2**32 - 3], ids=["from zero", "past 2^32"])
def test_announcements_keep_their_order(first: int) -> None:
    sender, receiver = pair(first)
    segments = [Segment.make(64 + i) for i in range(8)]
    for segment in segments:
        sender.announce(segment, 1)
        read = sender.acknowledgement(1)
    assert [receiver.expect(0)() for _ in segments] == [(s.handle, s.bytes) for s in segments]
    waiter = threading.Thread(target=read)
    waiter.start()
    for _ in segments:
        assert waiter.is_alive(), "acknowledged before the last message was read"
        receiver.acknowledge(0)
    waiter.join(5)
    assert not waiter.is_alive()


@counters
def test_an_announcement_waits_for_a_free_slot() -> None:
    sender, receiver = pair(timeout=0.1)
    segment = Segment.make(64)
    for _ in range(_SLOTS):
        sender.announce(segment, 1)
    with pytest.raises(RuntimeError, match="timed out"):
        sender.announce(segment, 1)
    receiver.acknowledge(0)
    sender.announce(segment, 1)


@counters
def test_a_barrier_waits_for_all() -> None:
    one, other = pair(2**32 - 1)
    early = threading.Thread(target=one.barrier)
    early.start()
    time.sleep(0.05)
    assert early.is_alive()
    other.barrier()
    early.join(5)
    assert not early.is_alive()


@counters
def test_a_worker_that_has_ended_is_not_waited_for() -> None:
    child = subprocess.Popen(["true"])
    while ") Z" not in Path(f"/proc/{child.pid}/stat").read_text():  # a zombie, as a child of the launcher is
        time.sleep(0.01)
    one, _ = pair(timeout=60.0, pid=child.pid)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="worker 1 has ended"):
        one.expect(1)()
    assert time.monotonic() - began < 10.0
    child.wait()


@pytest.mark.parametrize("counted", [pytest.param(True, marks=counters), False], ids=["counters", "gloo"])
def test_exchanges_and_sums_work_either_way(counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CounterNotices, "possible", staticmethod(lambda: counted))

    def work(comm: Any) -> tuple[str, list[float], float]:
        seen = []
        for turn in range(4):
            got = torch.empty(LARGE)
            out = torch.full((LARGE,), 10.0 * turn + comm.rank)
            comm.exchange({(comm.rank + 1) % 3: out}, {(comm.rank - 1) % 3: got}).wait()
            seen.append(got.mean().item())
        return type(comm._shared._notices).__name__, seen, comm.sum(torch.ones(LARGE))[-1].item()

    for rank, (name, seen, total) in enumerate(run(work, 3, False)):
        assert name == (CounterNotices if counted else GlooNotices).__name__
        assert seen == [10.0 * turn + (rank - 1) % 3 for turn in range(4)]
        assert total == 3.0


@both
def test_a_tensor_that_was_copied_may_change_at_once(virtual: bool) -> None:
    def work(comm: Any) -> tuple[bool, float]:
        peer, got = 1 - comm.rank, torch.empty(LARGE)
        out = torch.full((LARGE,), 1.0 + comm.rank)
        pending = comm.exchange({peer: out}, {peer: got})
        copied = comm.copies(out, [peer])
        if copied:
            out.fill_(-1.0)
        pending.wait()
        return copied, got.mean().item()

    assert [mean for _, mean in run(work, 2, virtual)] == [2.0, 1.0]


@both
def test_an_exchange_left_open_does_not_block_others(virtual: bool) -> None:
    """One ring in flight for long, while other exchanges with only one neighbour use the memory again and again."""

    def work(comm: Any) -> list[float]:
        left, right = (comm.rank - 1) % 4, (comm.rank + 1) % 4
        open_in = {p: torch.empty(LARGE) for p in (left, right)}
        message = torch.full((LARGE,), float(comm.rank))
        waiting = comm.exchange(dict.fromkeys((left, right), message), open_in)
        for turn in range(6):
            got = torch.empty(LARGE)
            comm.exchange({right: torch.full((LARGE,), 100.0 + turn)}, {left: got}).wait()
            assert got.unique().tolist() == [100.0 + turn]
        waiting.wait()
        return [open_in[p].mean().item() for p in (left, right)]

    assert run(work, 4, virtual) == [[(r - 1) % 4, (r + 1) % 4] for r in range(4)]
