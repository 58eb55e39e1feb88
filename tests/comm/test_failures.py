"""A worker that raises, dies, hangs or makes other calls is named, and no process is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
import torch

from equipoise.comm import heartbeat
from equipoise.core.errors import CheckpointError, NonFinite, PeerLost, UserError, WorkerError
from equipoise.launch import local

from .workers import both, run


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter pauses, inherited by the forked workers; the order of events is that of a real run."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)
    monkeypatch.setattr(local, "_GRACE", 0.5)


def rank_and_step(error: BaseException) -> tuple[int | None, int | None]:
    """Virtual workers raise the error itself, so that a debugger stops in it; processes wrap it."""
    if isinstance(error, WorkerError):
        return error.rank, error.step
    return error.equipoise_rank, error.equipoise_step  # type: ignore[attr-defined]


# -- raising ------------------------------------------------------------------------------------------------------
@both
def test_a_worker_that_raises_is_named(virtual: bool) -> None:
    def work(comm: Any) -> None:
        for step in range(1, 10):
            comm.step = step
            comm.sum(torch.ones(2))
            if comm.rank == 1 and step == 3:
                raise KeyError("the data is gone")

    with pytest.raises((WorkerError, KeyError), match="the data is gone") as caught:
        run(work, 3, virtual)
    assert rank_and_step(caught.value) == (1, 3)
    if not virtual:
        assert str(caught.value) == "worker 1 failed at step 3: KeyError: 'the data is gone'"
        assert 'raise KeyError("the data is gone")' in caught.value.remote_traceback


@both
@pytest.mark.parametrize("error", [UserError("pass --this"), CheckpointError("fix that")])
def test_an_error_for_the_user_arrives_as_it_is(error: UserError, virtual: bool) -> None:
    def work(comm: Any) -> None:
        comm.sum(torch.ones(1))
        raise error

    with pytest.raises(UserError) as caught:
        run(work, 2, virtual)
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)
    assert caught.value.code == error.code


@both
def test_a_worker_error_keeps_its_rank_and_step(virtual: bool) -> None:
    def work(comm: Any) -> None:
        comm.step = 6
        if comm.rank == 2:
            raise NonFinite("worker 2, step 5: the loss is nan", 2, 5)
        comm.sum(torch.ones(1))

    with pytest.raises(NonFinite, match="^worker 2, step 5: the loss is nan$") as caught:
        run(work, 3, virtual)
    assert rank_and_step(caught.value) == (2, 5)


@both
def test_the_first_failure_wins_over_what_follows_from_it(virtual: bool) -> None:
    """Workers 0 and 1 wait for a sum that can never end; blaming them would be wrong."""

    def work(comm: Any) -> None:
        comm.step = 4
        if comm.rank == 2:
            raise RuntimeError("my fault")
        comm.sum(torch.ones(1))

    with pytest.raises(RuntimeError, match="my fault") as caught:
        run(work, 3, virtual)
    assert rank_and_step(caught.value)[0] == 2


@both
def test_a_result_that_cannot_travel(virtual: bool) -> None:
    if virtual:
        assert callable(run(lambda comm: threading.Lock().acquire, 2, True)[0])
        return
    with pytest.raises(WorkerError, match=r"worker \d failed .*pickle"):
        run(lambda comm: threading.Lock(), 2, False)


def test_virtual_workers_unwind_and_the_world_is_as_before() -> None:
    """`finally` blocks of all workers run, also those that talk; threads and generators are as before."""
    cleaned: list[int] = []
    threads, state = torch.get_num_threads(), torch.get_rng_state()

    def work(comm: Any) -> None:
        torch.manual_seed(comm.rank)
        try:
            comm.sum(torch.ones(1))
            if comm.rank == 0:
                raise ValueError("stop")
            comm.sum(torch.ones(1))
        finally:
            cleaned.append(comm.rank)
            comm.sum(torch.ones(1))

    with pytest.raises(ValueError, match="stop"):
        run(work, 4, True)
    assert sorted(cleaned) == [0, 1, 2, 3]
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert not [t for t in threading.enumerate() if t.name.startswith("worker-")]
    assert run(lambda comm: comm.sum(torch.ones(1)).item(), 2, True) == [2.0, 2.0]


# -- dying --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_a_killed_worker_is_named_with_its_step(how: signal.Signals) -> None:
    def work(comm: Any) -> None:
        for step in range(1, 20):
            comm.step = step
            comm.computed(1)
            comm.sum(torch.ones(2))
            if comm.rank == 1 and step == 7:
                if how != signal.SIGKILL:
                    signal.signal(how, signal.SIG_DFL)  # nohup, around all this, would have it ignored
                os.kill(os.getpid(), how)

    started = time.monotonic()
    with pytest.raises(WorkerError, match=f"^worker 1 was killed by {how.name} at step 7") as caught:
        run(work, 3, False)
    assert (caught.value.rank, caught.value.step) == (1, 7)
    assert ("out of memory" in str(caught.value)) == (how == signal.SIGKILL)
    assert time.monotonic() - started < 5.0, "the launcher sees it at once"


def test_a_worker_that_leaves_through_the_back_door() -> None:
    def work(comm: Any) -> None:
        if comm.rank == 0:
            os._exit(7)
        comm.sum(torch.ones(1))

    with pytest.raises(WorkerError, match="^worker 0 ended with exit code 7"):
        run(work, 2, False)


def test_a_worker_killed_before_it_joins() -> None:
    original = local._child

    def child(function: Any, rank: int, *rest: Any) -> None:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        original(function, rank, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "_child", child)
        with pytest.raises(WorkerError, match="^worker 1 was killed by SIGKILL"):
            run(lambda comm: None, 3, False)


# -- hanging ------------------------------------------------------------------------------------------------------
def test_a_hung_worker_is_named_with_rank_and_step() -> None:
    """Both others give up; neither is blamed, and the step is that of the worker that hangs."""

    def work(comm: Any) -> None:
        for step in range(1, 10):
            comm.step = step
            comm.computed(1)
            if comm.rank == 1 and step == 4:
                time.sleep(60)
            comm.sum(torch.ones(2))

    started = time.monotonic()
    with pytest.raises(
        PeerLost, match="^worker 1 hangs outside of communication, last seen at step 4; worker . gave up"
    ) as caught:
        run(work, 3, False, timeout=2.0)
    assert (caught.value.rank, caught.value.step) == (1, 4)
    assert "timeout 2 s" in str(caught.value)
    assert time.monotonic() - started < 10.0


def test_a_hung_worker_is_named_by_a_neighbour_that_waits_for_its_message() -> None:
    def work(comm: Any) -> None:
        comm.step = 3
        comm.computed(1)
        if comm.rank == 2:
            time.sleep(60)
        ring = {(comm.rank - 1) % 3, (comm.rank + 1) % 3}
        comm.exchange({p: torch.ones(2) for p in ring}, {p: torch.empty(2) for p in ring}).wait()

    with pytest.raises(PeerLost, match="^worker 2 hangs outside of communication, last seen at step 3"):
        run(work, 3, False, timeout=1.0)


def test_the_first_to_give_up_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 2 waits from the start, worker 0 comes later and then misses worker 2, which has left; worker 1 hangs."""
    monkeypatch.setattr(local, "_GRACE", 2.0)  # time enough for worker 0 to blame worker 2

    def work(comm: Any) -> None:
        if comm.rank == 0:
            time.sleep(0.7)
        if comm.rank == 1:
            time.sleep(60)
        comm.sum(torch.ones(2))

    with pytest.raises(PeerLost, match="^worker 1 hangs"):
        run(work, 3, False, timeout=1.0)


# -- disagreeing --------------------------------------------------------------------------------------------------
@both
def test_a_worker_that_ends_too_early_is_named(virtual: bool) -> None:
    def work(comm: Any) -> None:
        comm.step = 2
        comm.sum(torch.ones(1))
        if comm.rank != 0:
            comm.sum(torch.ones(1))

    words = "already ended: \\[0\\]" if virtual else "^worker 0 has ended already, last seen at step 2"
    with pytest.raises(PeerLost, match=words):
        run(work, 3, virtual, timeout=1.5)


def test_a_deadlock_of_virtual_workers_is_reported() -> None:
    def work(comm: Any) -> None:
        comm.step = 5
        if comm.rank == 0:
            comm.exchange({}, {1: torch.empty(1)}).wait()
        else:
            comm.sum(torch.ones(1))

    with pytest.raises(PeerLost) as caught:
        run(work, 2, True)
    assert "worker 0 waits for a message from [1] at step 5" in str(caught.value)
    assert "worker 1 waits in sum of (1,) torch.float32 at step 5" in str(caught.value)


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (lambda c: c.sum(torch.ones(2)) if c.rank else c.gather(torch.ones(2)), "calls sum.*others are in gather"),
        (lambda c: c.broadcast(torch.ones(2), c.rank), "calls broadcast from 1.*others are in broadcast from 0"),
        (lambda c: c.sum(torch.ones(1 + 3 * c.rank)), r"calls sum of \(4,\).*others are in sum of \(1,\)"),
        (
            lambda c: c.sum(torch.ones(2, dtype=torch.float64 if c.rank else torch.float32)),
            "calls sum .*float64.*float32",
        ),
        (lambda c: c.gather(torch.ones(2, 3 - c.rank)), r"calls gather of \(2, 2\).*gather of \(2, 3\)"),
    ],
)
def test_virtual_workers_that_make_different_calls(calls: Any, words: str) -> None:
    def work(comm: Any) -> None:
        comm.step = 9
        calls(comm)

    with pytest.raises(WorkerError, match=f"^worker 1 {words}.*same calls in the same order") as caught:
        run(work, 2, True)
    assert (caught.value.rank, caught.value.step) == (1, 9)


def test_virtual_workers_that_exchange_different_shapes() -> None:
    def work(comm: Any) -> None:
        comm.step = 3
        comm.exchange({1 - comm.rank: torch.ones(2 + comm.rank)}, {1 - comm.rank: torch.empty(2 + comm.rank)}).wait()

    with pytest.raises(WorkerError, match=r"^worker 0 expected \(2,\) torch.float32 from worker 1 and got \(3,\)"):
        run(work, 2, True)
