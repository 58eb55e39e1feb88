"""The worker that the others wait for is named, and not one that left because of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from torch.distributed import PrefixStore, TCPStore

from equipoise.comm import connections, heartbeat
from equipoise.comm.diagnosis import Missing, certain, likely, state_of
from equipoise.comm.heartbeat import Beat
from equipoise.comm.last_word import error_of, word_of
from equipoise.comm.process import peer_lost
from equipoise.comm.segment import Segment
from equipoise.core.errors import NonFinite, PeerLost, WorkerError
from equipoise.launch import local

from .workers import run

RUNS = Beat(9, 50, 1, 7, "")
SILENT = "does not respond (stopped or hung)"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)
    monkeypatch.setattr(local, "_GRACE", 0.5)


def later(beat: Beat, **more: Any) -> Beat:
    return beat._replace(beats=beat.beats + 3, **more)


@pytest.mark.parametrize(
    ("one", "two", "status"),
    [
        (None, None, "never joined"),
        (RUNS, RUNS, SILENT),
        (RUNS._replace(inside=0), later(RUNS, inside=0), "hangs outside of communication"),
        (RUNS, later(RUNS, ending="has ended already"), "has ended already"),
        (RUNS, later(RUNS, ending="failed (KeyError: 'x')"), "failed (KeyError: 'x')"),
        (RUNS._replace(calls=49), later(RUNS, calls=49), "waits in another call"),
        (RUNS, later(RUNS, ending="lost"), None),  # it gave up as this one does
        (RUNS._replace(inside=0), later(RUNS, inside=0, calls=52), None),  # it is at work
    ],
)
def test_what_beats_say_of_another_worker(one: Beat | None, two: Beat | None, status: str | None) -> None:
    """This worker is the first and the third one waits, as this one does."""
    found = likely([RUNS, one, RUNS], [later(RUNS), two, later(RUNS)], {}, 0, closed=False)
    if status is None:
        assert found is None
    else:
        assert found is not None
        assert (found.rank, found.status.split(":")[0]) == (1, status.split(":")[0])


def test_of_several_silent_ones_the_first_to_fall_silent_is_named() -> None:
    """torchrun ends the other workers of a host as soon as it misses one."""
    first = [RUNS, RUNS, RUNS._replace(calls=48, step=6), RUNS]
    found = likely(first, [later(RUNS), *first[1:3], later(RUNS)], {}, 0, closed=True)
    assert found == Missing(2, 6, "has died")


def test_a_process_of_this_machine_needs_no_second_look() -> None:
    sleeper = subprocess.Popen(["sleep", "30"])
    try:
        assert certain([RUNS, RUNS], {1: sleeper.pid}, 0) is None
        os.kill(sleeper.pid, signal.SIGSTOP)
        _wait_until(lambda: state_of(sleeper.pid) == "stopped")
        assert certain([RUNS, RUNS], {1: sleeper.pid}, 0) == Missing(1, 7, SILENT)
        sleeper.kill()
        _wait_until(lambda: state_of(sleeper.pid) == "gone")
        assert certain([RUNS, RUNS], {1: sleeper.pid}, 0) == Missing(1, 7, "has died")
        assert certain([RUNS, RUNS._replace(ending="lost")], {1: sleeper.pid}, 0) is None, "it has said why it left"
    finally:
        sleeper.kill()
        sleeper.wait()


def _wait_until(condition: Any) -> None:
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never happened")


@pytest.mark.parametrize("elements", [2, 40_000], ids=["by sockets", "in shared memory"])
def test_a_stopped_worker_is_not_said_to_have_died(elements: int) -> None:
    def work(comm: Any) -> None:
        for step in range(1, 9):
            comm.step = step
            if comm.rank == 1 and step == 4:
                os.kill(os.getpid(), signal.SIGSTOP)
            comm.sum(torch.ones(elements))

    with pytest.raises(
        PeerLost, match=r"^worker 1 does not respond \(stopped or hung\), last seen at step \d; "
    ) as caught:
        run(work, 3, False, timeout=1.0)
    assert caught.value.rank == 1
    assert "(timeout 1 s)" in str(caught.value)


def test_memory_of_a_dead_worker_that_cannot_be_mapped_is_not_the_fault_of_who_maps_it() -> None:
    def work(comm: Any) -> None:
        comm.sum(torch.ones(1))
        pid = comm._shared.pids[1]

        def of(*args: Any) -> Segment:
            if comm.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            _wait_until(lambda: state_of(pid) == "gone")
            raise FileNotFoundError(2, "No such file", f"/proc/{pid}/fd/9")

        Segment.of = of  # type: ignore[method-assign, assignment]
        comm.step = 3
        comm.gather(torch.ones(4))

    with pytest.raises(WorkerError, match="^worker 1 was killed by SIGKILL"):
        run(work, 3, False)


def test_a_worker_that_is_stopped_before_it_joins() -> None:
    original = local._child

    def child(function: Any, rank: int, *rest: Any) -> None:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        original(function, rank, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "_child", child)
        with pytest.raises(PeerLost, match=r"^worker 1 never joined.* while the group was made \(timeout 1 s\)"):
            run(lambda comm: None, 3, False, timeout=1.0)


def test_a_store_that_does_not_answer_is_told_from_a_worker_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a link is cut: a call of torch's store would wait for a quarter of an hour."""
    monkeypatch.setattr(connections, "_ANSWER", (0.5, 0.5))
    ready, told = os.pipe()
    if (holder := os.fork()) == 0:
        kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(told, str(kept.port).encode())
        time.sleep(60)
        os._exit(0)
    try:
        port = int(os.read(ready, 20))
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False).clone()
        connections.limit_waits(PrefixStore("control", store), 0.5)
        beat = heartbeat.Heartbeat(PrefixStore("control", store), 1, 3)
        os.kill(holder, signal.SIGSTOP)
        error = peer_lost(beat, RuntimeError("timed out"), "in sum at step 3")
        assert isinstance(error, PeerLost)
        assert str(error).startswith(
            f"worker 1 lost the others in sum at step 3, and the store at 127.0.0.1:{port} does"
        )
        beat.close()
        assert not beat._thread.is_alive(), "it would keep the interpreter"
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)


def test_a_beat_that_cannot_be_published_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.01)
    published = []

    class Full:
        """For a moment."""

        def set(self, key: str, value: str) -> None:
            published.append(value)
            if len(published) == 3:
                raise OSError(28, "No space left on device")

    beat = heartbeat.Heartbeat(Full(), 0, 1)
    _wait_until(lambda: len(published) > 5)
    beat.close()
    assert published[-1].endswith("has ended already")


@pytest.mark.parametrize(
    "error", [NonFinite("worker 2, step 5: the loss is\nnan", 2, 5), KeyError("a\nb"), PeerLost("x", 1)]
)
def test_a_last_word_tells_who_waits_what_to_raise(error: Exception) -> None:
    word = word_of(error)
    found = certain([RUNS, RUNS._replace(ending=word)], {}, 0)
    if isinstance(error, PeerLost):
        assert found is None, "it lost somebody else"
        return
    assert found is not None
    raised = error_of(Missing.parse(" ".join(map(str, found))).status)
    if isinstance(error, NonFinite):
        assert (type(raised), str(raised), raised.rank, raised.step) == (NonFinite, str(error), 2, 5)  # type: ignore[union-attr]
    else:
        assert raised is None
        assert word == "failed (KeyError: 'a\\nb')"


def test_where_all_others_fall_silent_at_once_the_link_is_to_be_looked_at() -> None:
    silent = [RUNS, RUNS, RUNS]
    found = likely(silent, [later(RUNS), *silent[1:]], {}, 0, closed=False)
    assert found is not None
    assert found.status == "does not respond, and nor does any other worker (is this host cut off from theirs?)"


_PROGRAM = """
import runpy, sys, time
beats = runpy.run_path(sys.argv[1])  # without torch, which takes long to import

class Slow:
    def set(self, key, value):
        time.sleep(0.1)
        print(value, flush=True)

beats["Heartbeat"]._run.__globals__["INTERVAL"] = 0.01
beats["Heartbeat"](Slow(), 0, 1)
time.sleep(0.05)
{end}
"""


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "raise KeyError"])
def test_python_waits_for_a_beat_before_it_goes_down(end: str) -> None:
    """A thread that returns from the store to an interpreter that has gone aborts the process."""
    program = [sys.executable, "-c", _PROGRAM.format(end=end), heartbeat.__file__]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1].endswith("has ended already"), done.stderr
    assert done.returncode == (1 if "raise" in end else 0)
