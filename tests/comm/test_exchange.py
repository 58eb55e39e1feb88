"""Messages between neighbours, on both kinds of workers."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from equipoise.comm import barrier
from equipoise.comm.shared_memory import LEAST

from .workers import both, run

LARGE = LEAST // 4 + 3  # floats: a message that goes through shared memory


def full(value: float, count: int = 3) -> torch.Tensor:
    return torch.full((count,), float(value))


@both
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_a_ring_even_or_odd(size: int, virtual: bool) -> None:
    def work(comm: Any) -> list[Any]:
        peers = {(comm.rank - 1) % size, (comm.rank + 1) % size}
        seen = []
        for turn in range(3):
            for count in (3, LARGE):
                got = {p: torch.empty(count) for p in peers}
                comm.exchange({p: full(10 * comm.rank + p + 100 * turn, count) for p in peers}, got).wait()
                seen.append({p: set(t.tolist()) for p, t in got.items()})
        return seen

    for rank, seen in enumerate(run(work, size, virtual)):
        for i, got in enumerate(seen):
            assert got == {p: {10.0 * p + rank + 100 * (i // 2)} for p in {(rank - 1) % size, (rank + 1) % size}}


@both
def test_directed_and_uneven_graphs(virtual: bool) -> None:
    """0 -> 1 -> 2 -> 0, and 0 -> 2 besides; worker 3 has no peer and waits for nothing."""
    edges = [(0, 1), (1, 2), (2, 0), (0, 2)]

    def work(comm: Any) -> list[Any]:
        seen = []
        for turn in range(5):
            got = {a: torch.empty(2) for a, b in edges if b == comm.rank}
            comm.exchange({b: full(100 * turn + 10 * a + b, 2) for a, b in edges if a == comm.rank}, got).wait()
            seen.append({a: t[0].item() for a, t in got.items()})
        return seen

    for rank, seen in enumerate(run(work, 4, virtual)):
        for turn, got in enumerate(seen):
            assert got == {a: 100.0 * turn + 10 * a + b for a, b in edges if b == rank}


@both
@pytest.mark.parametrize("count", [3, LARGE])
@pytest.mark.parametrize("waits", ["in order", "backwards"])
def test_several_exchanges_under_way(waits: str, count: int, virtual: bool) -> None:
    """The n-th message that is asked for is the n-th that was sent, in whatever order a worker waits."""

    def work(comm: Any) -> list[Any]:
        peer, seen = 1 - comm.rank, []
        for turn in range(4):
            got = [torch.empty(count) for _ in range(3)]
            under_way = [
                comm.exchange({peer: full(100 * turn + 10 * comm.rank + k, count)}, {peer: got[k]}) for k in range(3)
            ]
            backwards = waits == "backwards" and comm.rank == 0
            for pending in reversed(under_way) if backwards else under_way:
                pending.wait()
            seen.append([set(t.tolist()) for t in got])
        return seen

    for rank, seen in enumerate(run(work, 2, virtual)):
        for turn, got in enumerate(seen):
            assert got == [{100.0 * turn + 10 * (1 - rank) + k} for k in range(3)]


@both
@pytest.mark.parametrize("count", [3, LARGE])
def test_after_wait_the_sent_tensor_is_free(count: int, virtual: bool) -> None:
    """A message is what the tensor held when it was sent, also for a peer that is slow to look."""

    def work(comm: Any) -> list[float]:
        mine, got, seen = torch.empty(count), torch.empty(count), []
        for turn in range(20):
            mine.fill_(10.0 * turn + comm.rank)
            pending = comm.exchange({1 - comm.rank: mine}, {1 - comm.rank: got})
            if comm.rank == 1 and turn % 7 == 0:
                time.sleep(0.01)
            pending.wait()
            mine.fill_(-1.0)
            seen.append(got.unique().tolist())
        return seen

    for rank, seen in enumerate(run(work, 2, virtual)):
        assert seen == [[10.0 * turn + 1 - rank] for turn in range(20)]


@both
def test_a_fast_sender_does_not_overwrite_what_waits_to_be_read(virtual: bool) -> None:
    """One direction only: nothing holds the sender back but the reader."""

    def work(comm: Any) -> list[Any]:
        got, seen = torch.empty(LARGE), []
        for turn in range(12):
            if comm.rank == 0:
                comm.exchange({1: full(turn, LARGE)}, {}).wait()
            else:
                pending = comm.exchange({}, {0: got})
                time.sleep(0.005)
                pending.wait()
                seen.append(got.unique().tolist())
        return seen

    assert run(work, 2, virtual)[1] == [[float(turn)] for turn in range(12)]


@both
def test_one_tensor_to_many_and_collectives_in_between(virtual: bool) -> None:
    def work(comm: Any) -> tuple[Any, Any]:
        others = [p for p in range(comm.size) if p != comm.rank]
        mine = full(comm.rank)
        got = {p: torch.empty(3) for p in others}
        pending = comm.exchange(dict.fromkeys(others, mine), got)
        total = comm.sum(torch.ones(2)).tolist()
        barrier(comm)
        pending.wait()
        return total, {p: t.tolist() for p, t in got.items()}

    for rank, (total, got) in enumerate(run(work, 3, virtual)):
        assert total == [3.0, 3.0]
        assert got == {p: [float(p)] * 3 for p in range(3) if p != rank}


@both
def test_waiting_twice_waits_for_nothing_more(virtual: bool) -> None:
    def work(comm: Any) -> list[float]:
        got = torch.empty(1)
        first = comm.exchange({1 - comm.rank: full(comm.rank, 1)}, {1 - comm.rank: got})
        first.wait()
        got.fill_(5.0)
        first.wait()
        second = torch.empty(1)
        comm.exchange({1 - comm.rank: full(comm.rank + 7, 1)}, {1 - comm.rank: second}).wait()
        return [got.item(), second.item()]

    assert run(work, 2, virtual, timeout=5.0) == [[5.0, 8.0], [5.0, 7.0]]


@both
def test_an_exchange_without_peers(virtual: bool) -> None:
    def work(comm: Any) -> int:
        comm.exchange({}, {}).wait()
        return comm.ledger.messages

    assert run(work, 2, virtual) == [0, 0]


@both
@pytest.mark.parametrize("peer", [-1, 0, 2])
def test_a_peer_that_does_not_exist_is_refused(peer: int, virtual: bool) -> None:
    """Each worker on its own, and before anything is sent."""

    def work(comm: Any) -> str:
        if comm.rank == 0:
            with pytest.raises(ValueError, match=f"worker 0 of 2 cannot exchange with worker {peer}"):
                comm.exchange({peer: full(1)}, {})
            with pytest.raises(ValueError, match=f"worker 0 of 2 cannot exchange with worker {peer}"):
                comm.exchange({}, {peer: full(1)})
            with pytest.raises(ValueError, match="not contiguous"):
                comm.exchange({1: torch.ones(2, 2)[:, 0]}, {})
        return "fine"

    assert run(work, 2, virtual) == ["fine", "fine"]


@both
@pytest.mark.parametrize("count", [3, LARGE])
def test_messages_can_be_read_where_they_lie(count: int, virtual: bool) -> None:
    """Until they are released they stay as they were sent, whatever the sender does next."""

    def work(comm: Any) -> list[Any]:
        peer, mine, seen = 1 - comm.rank, torch.empty(count), []
        for turn in range(6):
            mine.fill_(10.0 * turn + comm.rank)
            first = comm.exchange({peer: mine}, {peer: torch.empty(count)})
            messages = first.arrive()
            mine.fill_(-1.0)
            second = comm.exchange({peer: full(1000 + turn, count)}, {peer: torch.empty(count)})
            other = second.arrive()
            time.sleep(0.002 * comm.rank)
            seen.append((messages[peer].unique().tolist(), other[peer].unique().tolist()))
            first.release()
            second.release()
        return seen

    for rank, seen in enumerate(run(work, 2, virtual)):
        assert seen == [([10.0 * turn + 1 - rank], [1000.0 + turn]) for turn in range(6)]
