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

from equipoise.comm import heartbeat
from equipoise.comm.diagnosis import Missing, certain, likely, state_of
from equipoise.comm.heartbeat import Beat
from equipoise.comm.segment import Segment
from equipoise.core.errors import PeerLost, WorkerError
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
