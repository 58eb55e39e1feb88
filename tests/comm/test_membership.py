"""Workers that come and go: everybody alive agrees on who is present, and a fixed world begins."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch

from equipoise.comm.membership import Elasticity, Lost, Roster
from equipoise.comm.process import ProcessComm
from equipoise.comm.virtual_membership import Change, VirtualMembers
from equipoise.core.errors import PeerLost, UserError
from equipoise.launch.elastic import ElasticLauncher
from equipoise.simulate.cluster import Cluster, Link


def counting(steps: int, log: list[Any] | None = None) -> Any:
    """A loop that sums at every step, lets newcomers in where all agree, and repeats a step that was broken."""

    def loop(comm: Any) -> list[tuple[int, tuple[int, ...], float]]:
        membership, seen, step = comm.membership, [], 0
        if membership.waiting:
            comm = membership.enter()
            step = max(comm.gather_objects(step))
        while step < steps:
            comm.step = step + 1
            try:
                comm.computed(1)
                total = comm.sum(torch.ones(1)).item()
                due = membership.newcomers() if comm.rank == 0 else 0
                due = comm.gather_objects(due)[0]
            except PeerLost as lost:
                if log is not None:
                    log.append((membership.worker, lost.rank, str(lost)))
                comm, due = membership.reform(), 0
                step = min(s for s in comm.gather_objects(step))
                continue
            step += 1
            seen.append((step, membership.roster.members, total))
            if due:
                comm = membership.reform()
                comm.gather_objects(step)
        return seen

    return loop


def test_the_workers_that_are_left_go_on_and_every_sum_is_of_those_present() -> None:
    log: list[Any] = []
    members = VirtualMembers(4, Elasticity(2, 4), [Change(1, "lose", step=3), Change(3, "lose", step=5)])
    results = members.run(counting(6, log))
    assert sorted(results) == [0, 2]
    for seen in results.values():
        assert [step for step, _, _ in seen] == [1, 2, 3, 4, 5, 6]
        assert [total for _, _, total in seen] == [4, 4, 3, 3, 2, 2]
        assert seen[-1][1] == (0, 2)
    assert {entry[:2] for entry in log} == {(0, 1), (2, 1), (3, 1), (0, 3), (2, 3)}
    assert {entry[2] for entry in log if entry[1] == 1} == {"worker 1 was killed at step 3"}
    assert {entry[2] for entry in log if entry[1] == 3} == {"worker 3 (rank 2) was killed at step 5"}
    assert members.roster == Roster(2, (0, 2), (), (Lost(3, "was killed", 5, 2),))


def test_newcomers_and_returning_workers_are_let_in_where_all_agree() -> None:
    changes = [Change(0, "lose", step=2), Change(5, "join", step=3), Change(0, "join", step=5)]
    results = VirtualMembers(2, Elasticity(1, 3), changes).run(counting(7))
    assert [members for _, members, _ in results[1]] == [(0, 1), (1,), (1,), (1, 5), (1, 5), (0, 1, 5), (0, 1, 5)]
    assert [total for _, members, total in results[1]] == [2, 1, 1, 2, 2, 3, 3]
    assert [step for step, _, _ in results[5]] == [4, 5, 6, 7]
    assert [step for step, _, _ in results[0]] == [6, 7]


def test_no_more_than_the_most_are_let_in_and_the_others_wait_until_the_end() -> None:
    results = VirtualMembers(2, Elasticity(1, 3), [Change(i, "join", step=2) for i in (2, 3)]).run(counting(5))
    assert sorted(results) == [0, 1, 2]
    assert results[0][-1][1] == (0, 1, 2)


def test_a_worker_that_is_lost_while_the_others_agree() -> None:
    """Worker 2 dies at a simulated second at which worker 0 has already arrived to agree without worker 1."""
    cluster = Cluster([1000.0, 1000.0, 10.0, 1000.0], Link())
    changes = [Change(1, "lose", step=2), Change(2, "lose", seconds=0.15)]
    results = VirtualMembers(4, Elasticity(1, 4), changes, cluster).run(counting(4))
    assert sorted(results) == [0, 3]
    assert [total for _, _, total in results[0]] == [4, 2, 2, 2]


def test_a_loss_is_noticed_after_its_time_on_a_described_cluster() -> None:
    cluster = Cluster([1.0, 1.0, 1.0], Link())

    def loop(comm: Any) -> float:
        comm.step = 1
        comm.computed(1)
        with pytest.raises(PeerLost):
            comm.sum(torch.ones(1))
        comm = comm.membership.reform()
        assert comm._world.cluster.size == 2
        return comm.now

    members = VirtualMembers(3, Elasticity(1, 3), [Change(2, "lose", step=1)], cluster, notice=30.0)
    assert members.run(loop) == {0: 31.0, 1: 31.0}


def test_the_same_plan_gives_the_same_history() -> None:
    changes = [Change(2, "lose", step=3), Change(4, "join", step=4), Change(0, "lose", step=6)]
    once, again = (VirtualMembers(4, Elasticity(2, 5), changes).run(counting(9)) for _ in range(2))
    assert once == again


@pytest.mark.parametrize("text", ["2:1", "0:4", "a:b", "5:8", "3:", 9])
def test_limits_that_make_no_sense_are_refused(text: Any) -> None:
    with pytest.raises(UserError, match="elastic = "):
        Elasticity.parse(text, 4)


def test_limits() -> None:
    assert Elasticity.parse("2:8", 4) == Elasticity(2, 8)
    assert Elasticity.parse(2, 4, 5.0) == Elasticity(2, 4, 5.0)
    with pytest.raises(UserError, match="deadline = 0"):
        Elasticity.parse(2, 4, 0)


def test_a_part_of_a_cluster() -> None:
    fast, slow = Link(1e9, 0.001), Link(1e6, 0.1)
    whole = Cluster([1.0, 2.0, 3.0, 4.0], fast, between={(1, 3): slow}, sites=["a", "a", "b", "b"], jitter=[0, 0, 0, 1])
    part = whole.of([1, 3])
    assert part.rates == [2.0, 4.0]
    assert part.link_of(0, 1) == slow
    assert (part.sites, part.jitter) == (["a", "b"], [0.0, 1.0])
    assert whole.of([0, 3]).link_of(0, 1) == fast
    assert whole.of(range(4)) == whole


def test_failures_of_a_described_cluster_end_generations_and_the_worker_returns() -> None:
    """One second per step. Worker 1 fails at 2.5 s, is missed half a second later, and is back before 5 s."""
    cluster = Cluster([1.0] * 3, away={1: [(2.5, 4.9)]}, slow={0: [(6.0, 8.0, 2.0)]})
    members = VirtualMembers(3, Elasticity(1, 3), cluster=cluster, notice=0.5)
    results = members.run(counting(9))
    assert [total for _, _, total in results[0]] == [3, 3, 2, 2, 3, 3, 3, 3, 3]
    assert results[2] == results[0]
    assert [step for step, _, _ in results[1]] == [5, 6, 7, 8, 9]
    # Noticed at 3 s; two steps without it, to 5 s; five with it, of which one second is lost to a slow-down.
    assert {worker.now for worker in members.scheduler.workers if worker.done and not worker.lost} == {11.0}


def test_a_worker_of_a_described_cluster_that_arrives_later() -> None:
    cluster = Cluster([1.0] * 3, away={1: [(0.0, 2.9)]})
    results = VirtualMembers(3, Elasticity(1, 3), cluster=cluster, notice=1.0).run(counting(4))
    assert [total for _, _, total in results[0]] == [2, 2, 3, 3]  # noticed after a second, let in at 3 s


# -- processes ---------------------------------------------------------------------------------------------------------
def launched(function: Any, workers: int, elasticity: Elasticity) -> list[Any]:
    launcher = ElasticLauncher(function, elasticity, timeout=60.0, deterministic=True, children=[])
    return launcher.run(workers)


def falling(loop: Any, fates: dict[int, tuple[int, int]]) -> Any:
    """The loop, in which workers send themselves a signal after the gradient of a step."""

    def work(comm: Any) -> Any:
        membership = comm.membership
        step, signal_number = fates.get(membership.worker, (-1, 0))
        original = ProcessComm.computed

        def computed(self: Any, examples: float) -> float:
            if self.step == step and not membership.roster.joined:
                os.kill(os.getpid(), signal_number)
            return original(self, examples)

        ProcessComm.computed = computed  # type: ignore[method-assign]
        return loop(comm)

    return work


def test_processes_that_are_killed_are_left_out_as_virtual_workers_are() -> None:
    fates = {1: (3, signal.SIGKILL), 3: (5, signal.SIGKILL)}
    results = launched(falling(counting(6), fates), 4, Elasticity(2, 4, 20.0))
    changes = [Change(worker, "lose", step=step) for worker, (step, _) in fates.items()]
    assert results == list(VirtualMembers(4, Elasticity(2, 4), changes).run(counting(6)).values())


def test_a_stopped_process_is_left_out_within_the_deadline() -> None:
    began = time.monotonic()
    results = launched(falling(counting(6), {1: (3, signal.SIGSTOP)}), 3, Elasticity(2, 4, 2.0))
    assert [total for _, _, total in results[0]] == [3, 3, 2, 2, 2, 2]
    assert time.monotonic() - began < 20.0
