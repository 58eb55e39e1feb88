"""Runs side by side, as many as there are cores for; a signal leaves everything so that the same command goes on."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from ..core.errors import UserError
from ..loop.from_recipe import assemble
from .child import child
from .plan import Task

_LOOK = 0.3  # seconds between looks at what the runs have written
_SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Active(NamedTuple):
    task: Task
    process: Any
    pipe: Connection


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_jobs(tasks: list[Task]) -> int:
    """A core for each run on virtual workers; runs on processes need one for each of theirs."""
    widest = max((1 if plain["virtual"] else plain["workers"] for t in tasks if (plain := t.recipe.plain())), default=1)
    return max(1, cores() // widest)


def run_all(tasks: list[Task], jobs: int, told: Callable[[list[Task]], None], ended: Callable[[Task], None]) -> int:
    """Run what is fresh or half-done; 0, or the exit code of the signal that ended it early.

    told(active tasks) is called a few times a second, ended(task) once for each that came to an end, good or bad.
    """
    if jobs < 1:
        raise UserError(f"--jobs {jobs}: at least 1 is needed")
    waiting = [task for task in tasks if task.state in ("fresh", "half")]
    warm_up(waiting)
    active: list[Active] = []
    with stop_requests() as stop:
        try:
            while active or (waiting and not stop):
                while waiting and len(active) < jobs and not stop:
                    active.append(start(waiting.pop(0)))
                if stop:
                    for one in active:
                        ask_to_end(one, hard=len(stop) > 1)
                wait([one.pipe for one in active], timeout=_LOOK)
                told([one.task for one in active])
                for one in [one for one in active if one.pipe.poll() or not one.process.is_alive()]:
                    active.remove(one)
                    settle(one, stopping=bool(stop))
                    if one.task.state in ("done", "failed"):
                        ended(one.task)
        finally:
            for one in active:
                one.process.kill()
                one.process.join()
    return _SIGNALS[stop[0]] if stop else 0


def warm_up(waiting: list[Task]) -> None:
    """Load what the runs need before they are forked: they share it instead of loading it one by one."""
    for task in waiting:
        with contextlib.suppress(Exception):  # it will say so itself
            assemble(task.recipe)
            return


def start(task: Task) -> Active:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    (task.folder / "failure.json").unlink(missing_ok=True)
    how = (theirs, task.folder, task.recipe, task.state == "half")
    process = context.Process(target=child, args=how, name=task.words)
    process.start()
    theirs.close()
    return Active(task, process, ours)


def settle(one: Active, stopping: bool) -> None:
    """How a run ended, from what it said; one that said nothing was killed."""
    try:
        code, words = pickle.loads(one.pipe.recv_bytes())
    except (EOFError, OSError):
        one.process.join()
        code, words = 3, f"its process was ended from outside (code {one.process.exitcode})"
    one.process.join()
    one.pipe.close()
    if code == 0:
        one.task.finish()
    elif stopping:
        one.task.state = "stopped"
    else:
        one.task.fail(words)


def ask_to_end(one: Active, hard: bool) -> None:
    if hard:
        one.process.kill()
    elif not getattr(one.process, "asked", False):
        one.process.terminate()
        one.process.asked = True


@contextlib.contextmanager
def stop_requests() -> Iterator[list[signal.Signals]]:
    """The signals that have come so far."""
    found: list[signal.Signals] = []
    before = {}
    with contextlib.suppress(ValueError):  # not the main thread: signals are somebody else's
        for number in _SIGNALS:
            before[number] = signal.signal(number, lambda n, _: found.append(signal.Signals(n)))
    try:
        yield found
    finally:
        for number, old in before.items():
            signal.signal(number, old)
