"""Runs in parallel, as many as the cores allow. After a signal, repeating the same command continues the comparison."""

from __future__ import annotations

import contextlib
import importlib
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
from .plan import PlannedRun

_POLL_SECONDS = 0.3  # between two looks at the progress of the runs
_SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}


class ActiveRun(NamedTuple):
    run: PlannedRun
    process: Any
    pipe: Connection


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_jobs(runs: list[PlannedRun]) -> int:
    """One core per run with virtual workers; a run with processes needs one core per worker."""
    widest = max((1 if plain["virtual"] else plain["workers"] for r in runs if (plain := r.recipe.plain())), default=1)
    return max(1, cores() // widest)


def run_all(
    runs: list[PlannedRun],
    jobs: int,
    on_progress: Callable[[list[PlannedRun]], None],
    on_finish: Callable[[PlannedRun], None],
    *,
    over: Callable[[], bool] = lambda: False,
) -> int:
    """Run whatever is fresh or half done. Returns 0, or the exit code of the signal that stopped it.

    on_progress: called a few times per second with the active runs.
    on_finish: called once for each run that succeeds or fails.
    over: is the time up? Then no run starts any more, and those that are active are stopped.
    """
    if jobs < 1:
        raise UserError(f"--jobs {jobs}: must be at least 1")
    waiting = [run for run in runs if run.state in ("fresh", "half")]
    warm_up(waiting)
    active: list[ActiveRun] = []
    with stop_requests() as signals:
        try:
            while active or (waiting and not signals and not over()):
                while waiting and len(active) < jobs and not signals and not over():
                    active.append(start(waiting.pop(0)))
                if signals or over():
                    for one in active:
                        request_stop(one, kill=len(signals) > 1)
                wait([one.pipe for one in active], timeout=_POLL_SECONDS)
                on_progress([one.run for one in active])
                for one in [one for one in active if one.pipe.poll() or not one.process.is_alive()]:
                    active.remove(one)
                    collect(one, stopping=bool(signals) or over())
                    if one.run.state in ("done", "failed"):
                        on_finish(one.run)
        finally:
            for one in active:
                one.process.kill()
                one.process.join()
    return _SIGNALS[signals[0]] if signals else 0


def warm_up(waiting: list[PlannedRun]) -> None:
    """Import what the runs need before they are forked, so that each does not import it again."""
    for run in waiting:
        with contextlib.suppress(Exception):  # the run itself reports the error
            job, _ = assemble(run.recipe)
            importlib.import_module("equipoise.loop.train")
            # The first optimizer of a process imports much of torch.
            job.optimizer(job.model().parameters()).step()
            return


def start(run: PlannedRun) -> ActiveRun:
    context = multiprocessing.get_context("fork")
    parent_end, child_end = context.Pipe()
    (run.folder / "failure.json").unlink(missing_ok=True)
    arguments = (child_end, run.folder, run.recipe, run.state == "half")
    process = context.Process(target=child, args=arguments, name=run.label)
    process.start()
    child_end.close()
    return ActiveRun(run, process, parent_end)


def collect(one: ActiveRun, stopping: bool) -> None:
    """Record how a run ended. A run that sent nothing was killed."""
    try:
        code, message = pickle.loads(one.pipe.recv_bytes())
    except (EOFError, OSError):
        one.process.join()
        code, message = 3, f"its process was killed from outside (exit code {one.process.exitcode})"
    one.process.join()
    one.pipe.close()
    if code == 0:
        one.run.finish()
    elif stopping:
        one.run.state = "stopped"
    else:
        one.run.fail(message)


def request_stop(one: ActiveRun, kill: bool) -> None:
    if kill:
        one.process.kill()
    elif not getattr(one.process, "stop_requested", False):
        one.process.terminate()
        one.process.stop_requested = True


@contextlib.contextmanager
def stop_requests() -> Iterator[list[signal.Signals]]:
    """The list of signals received so far."""
    received: list[signal.Signals] = []
    previous = {}
    with contextlib.suppress(ValueError):  # handlers can be set in the main thread only
        for number in _SIGNALS:
            previous[number] = signal.signal(number, lambda n, _: received.append(signal.Signals(n)))
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
