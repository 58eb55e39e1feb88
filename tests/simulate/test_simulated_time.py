"""Waiting emerges from the workers' clocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from equipoise.core.errors import UserError
from equipoise.launch.start import spawn
from equipoise.simulate.cluster import PAYLOAD, Cluster, Link

LINK = Link(bandwidth=8e6 / PAYLOAD, latency=1e-3)  # a byte in a microsecond


def clocks(function: Any, cluster: Cluster) -> list[float]:
    def work(comm: Any) -> float:
        function(comm)
        return comm.now

    return spawn(work, cluster.size, virtual=True, cluster=cluster)


def test_two_unequal_workers_and_an_all_reduce() -> None:
    """max(compute) + 2 (N - 1) (latency + bytes / N / bandwidth), for both; the fast one waits."""

    def work(comm: Any) -> None:
        for _ in range(3):
            comm.computed(60)
            comm.mean(torch.ones(500))

    step = 60 / 100 + 2 * (1e-3 + 2000 / 2 / 1e6)
    assert clocks(work, Cluster([100.0, 300.0], LINK)) == pytest.approx([3 * step] * 2, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "seconds"),
    [
        (lambda c: c.sum(torch.ones(300)), 4 * (1e-3 + 400e-6)),
        (lambda c: c.weighted_mean(torch.ones(300)), 4 * (1e-3 + 400e-6)),
        (lambda c: c.gather(torch.ones(300)), 2 * (1e-3 + 1200e-6)),
        (lambda c: c.broadcast(torch.ones(300)), 2 * (1e-3 + 1200e-6)),
        (lambda c: c.gather_objects("x" * 1000), 0.0),
        (lambda c: c.counter("a", 1), 0.0),
    ],
)
def test_each_call_by_hand(call: Any, seconds: float) -> None:
    assert clocks(call, Cluster([100.0] * 3, LINK)) == pytest.approx([seconds] * 3, rel=1e-12)


def test_a_collective_starts_when_the_last_one_comes() -> None:
    def work(comm: Any) -> None:
        comm.computed(10 * comm.rank)
        comm.gather(torch.ones(250))

    assert clocks(work, Cluster([100.0] * 3, LINK)) == pytest.approx([0.2 + 2 * 2e-3] * 3)


def test_gossip_waits_for_its_neighbours_alone() -> None:
    """A path 0 - 1 - 2 - 3 whose last worker is slow: each round its delay spreads by one hop."""

    def rounds(count: int) -> list[float]:
        def work(comm: Any) -> None:
            peers = [p for p in (comm.rank - 1, comm.rank + 1) if 0 <= p < 4]
            for _ in range(count):
                comm.computed(10)
                comm.exchange({p: torch.ones(250) for p in peers}, {p: torch.empty(250) for p in peers}).wait()

        return clocks(work, Cluster([100.0, 100.0, 100.0, 10.0], LINK))

    fast, slow = 0.1, 1.0
    one, two = 2e-3, 3e-3  # a message that has its sender's connection for itself, and of two that share it
    assert rounds(1) == pytest.approx([fast + two, fast + two, slow + one, slow])
    # Worker 2 starts its second round late and holds up worker 1, not yet worker 0; worker 3 never waits.
    late = slow + one + fast + two
    assert rounds(2) == pytest.approx([2 * (fast + two), late, 2 * slow + one, 2 * slow])


def test_messages_share_the_connections_of_their_ends() -> None:
    def one_link(comm: Any) -> None:
        if comm.rank == 0:
            for _ in range(3):
                comm.exchange({1: torch.ones(250)}, {})
        elif comm.rank == 1:
            pending = [comm.exchange({}, {0: torch.empty(250)}) for _ in range(3)]
            for p in pending:
                p.wait()

    assert clocks(one_link, Cluster([1.0] * 3, LINK)) == pytest.approx([0.0, 4e-3, 0.0])

    def two_links(comm: Any) -> None:
        if comm.rank == 0:
            comm.exchange({1: torch.ones(250), 2: torch.ones(250)}, {})
        else:
            comm.exchange({}, {0: torch.empty(250)}).wait()

    assert clocks(two_links, Cluster([1.0] * 3, LINK)) == pytest.approx([0.0, 3e-3, 3e-3])
    # A slow link leaves the connection free for the other.
    slow = Cluster([1.0] * 3, LINK, {(0, 1): Link(8e5 / PAYLOAD, 1e-3)})
    assert clocks(two_links, slow) == pytest.approx([0.0, 11e-3, 3e-3])

    def hub(comm: Any) -> None:
        if comm.rank:
            comm.exchange({0: torch.ones(250)}, {})
        else:
            comm.exchange({}, {p: torch.empty(250) for p in range(1, 4)}).wait()

    assert clocks(hub, Cluster([1.0] * 4, LINK)) == pytest.approx([4e-3, 0.0, 0.0, 0.0])


def test_work_hides_the_way_of_a_message() -> None:
    def work(comm: Any) -> None:
        pending = comm.exchange({1 - comm.rank: torch.ones(250)}, {1 - comm.rank: torch.empty(250)})
        comm.computed(10)
        pending.wait()

    assert clocks(work, Cluster([100.0] * 2, LINK)) == pytest.approx([0.1, 0.1])


def test_uncounted_calls_take_no_time() -> None:
    def work(comm: Any) -> None:
        comm.computed(10 * (1 + comm.rank))
        with comm.uncounted():
            comm.mean(torch.ones(1000))
            comm.gather(torch.ones(1000))
            comm.exchange({1 - comm.rank: torch.ones(250)}, {1 - comm.rank: torch.empty(250)}).wait()

    assert clocks(work, Cluster([100.0] * 2, LINK)) == [0.1, 0.2], "an uncounted collective makes no worker wait"


def test_the_earlier_worker_reaches_a_counter_first() -> None:
    """As on a real cluster: the worker that finishes first, not the one with the lower rank."""

    def work(comm: Any) -> int:
        comm.computed(100 - 10 * comm.rank)
        return comm.counter("who", 1)

    assert spawn(work, 4, virtual=True, cluster=Cluster([1.0] * 4)) == [4, 3, 2, 1]


def test_time_is_real_on_processes() -> None:
    def work(comm: Any) -> float:
        comm.computed(10)
        return comm.now

    assert spawn(work, 2, timeout=30.0) == [0.0, 0.0]


def test_a_cluster_of_another_size_or_without_virtual_is_refused() -> None:
    with pytest.raises(UserError, match="describes 3 workers and the run has 2"):
        spawn(lambda comm: None, 2, virtual=True, cluster=Cluster([1.0] * 3))
    with pytest.raises(UserError, match="--virtual"):
        spawn(lambda comm: None, 2, cluster=Cluster([1.0] * 2))
