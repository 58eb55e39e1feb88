"""kill -9, SIGTERM and Ctrl-C at any moment, again and again; each time the run is resumed, to the bits of one that was
left alone."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.checkpoint.store import available, read_worker, verify
from equipoise.core.errors import CheckpointError

from . import story
from .count import Sums
from .victim import Outcome, Victim, until

RESUMED = "resumed to the bits of an undisturbed run"
KINDS = {
    "worker": "kill -9 of a worker",
    "launcher": "kill -9 of the launcher",
    "all": "kill -9 of all processes",
    "write": "kill -9 of a worker inside a checkpoint write",
    "SIGTERM": "SIGTERM to the launcher",
    "SIGINT": "Ctrl-C",
}
WEIGHTS = {"worker": 6, "launcher": 3, "all": 2, "write": 8, "SIGTERM": 2, "SIGINT": 2}
_FILES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree"}


class Fault(NamedTuple):
    kind: str
    rank: int
    step: int  # steps after the checkpoint from which this life begins
    jitter: float  # seconds after that step was begun
    call: int  # inside a write: which of the worker's calls on files

    @classmethod
    def drawn(cls, rng: random.Random) -> Fault:
        kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        return cls(kind, rng.randrange(story.WORKERS), rng.randint(0, 7), rng.random() * 0.02, rng.randint(1, 40))


def killed_many_times(sync: str, rng: random.Random, folder: Path, sums: Sums, most: int = 1000, **how: Any) -> int:
    """One run that is killed until it ends all the same; the number of faults."""
    run, journal = folder / "run", story.Journal(folder / "journal")
    folder.mkdir(parents=True)
    faults: list[Fault] = []
    resumed: dict[int, int] = {}
    for life in range(200):
        resumed[life] = start = story.resume_point(run)
        if not start:
            shutil.rmtree(run, ignore_errors=True)
        fault = Fault.drawn(rng) if len(faults) < most else None
        journal.life = life
        victim = Victim(lambda: one_life(run, sync, journal, bool(start), fault, how), folder / "said")  # noqa: B023
        if fault is not None and fault.kind != "write":
            strike(victim, journal, life, start, fault)
        outcome = victim.wait(120)
        sha, stopped = outcome.value or ("", 0)
        outcome = outcome._replace(code=outcome.code or stopped)
        leftover = victim.left_behind(15)
        sums.row("launchers that ended", "no process is left").count(leftover == 0, f"{sync} {fault}")
        check_checkpoints(run, sync, sums, at_least=start)
        if outcome.code == 0 or fault is None:
            break
        faults.append(fault)
        blame(fault, outcome, sync, sums)
    right = outcome.code == 0 and sha == story.undisturbed(sync)
    for fault in faults:
        sums.row(KINDS[fault.kind], RESUMED).count(right, f"{sync} {fault}: {outcome}")
    check_history(run, journal.agreed(resumed), f"{sync} {resumed}", sums)
    return len(faults)


def check_history(run: Path, agreed: list[story.Line], what: str, sums: Sums) -> None:
    """Of a run that has ended in spite of its faults: its examples, and its log."""
    wrong = story.lost_and_repeated(agreed)
    sums.row("examples of runs with such faults", "each once per epoch in what counts").count(wrong == 0, what)
    log = story.log_of(run)
    row = sums.row("logs of runs with such faults", "read as one history, without gaps")
    row.count(log == story.WHOLE_LOG, f"{what}: {log}")


def one_life(
    run: Path, sync: str, journal: story.Journal, resume: bool, fault: Fault | None, how: dict[str, Any]
) -> tuple[str, int]:
    """The hash of the mean model, and the exit code that a signal asks for."""
    if fault is not None and fault.kind == "write":
        die_inside_a_write(fault)
    ended = story.train(run, sync, journal, resume=resume, **how)
    return ended.result["params_sha256"], ended.stopped


def die_inside_a_write(fault: Fault) -> None:
    """From now on the worker of this rank dies at its n-th call that touches a checkpoint."""
    calls, launcher = 0, os.getpid()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal calls
        if event in _FILES and os.getpid() != launcher and any("step-" in str(a) for a in arguments):
            calls += 1
            # By the name of the process: the thread that writes has no comm of its own.
            if calls >= fault.call and multiprocessing.current_process().name == f"worker-{fault.rank}":
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def strike(victim: Victim, journal: story.Journal, life: int, start: int, fault: Fault) -> None:
    """Wait for the step, and do it."""
    enough = story.WORKERS if fault.step or fault.kind == "worker" else 1
    until(lambda: (len(journal.workers(life)) >= enough and journal.step(life) >= start + fault.step) or victim.ended())
    time.sleep(fault.jitter)
    pids = {
        "worker": [journal.workers(life).get(fault.rank, 0)],
        "all": victim.members(),
    }.get(fault.kind, [victim.pid])
    number = getattr(signal, fault.kind, signal.SIGKILL)
    for pid in pids:
        if pid and not (pid == victim.pid and victim.ended()):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def check_checkpoints(run: Path, what: str, sums: Sums, at_least: int) -> None:
    """Every finished checkpoint is whole, and the newest one is as new as before."""
    newest = sums.row("last good checkpoints after a fault", "whole, and none newer is lost")
    older = sums.row("older checkpoints after a fault", "whole, or gone")
    paths = available(run)
    for path in paths:
        row = newest if path == paths[-1] else older
        try:
            manifest = verify(path, [])
            for rank in range(manifest["workers"]):
                read_worker(path, manifest, rank)
        except CheckpointError as error:
            row.count(False, f"{what}: {error}")
        else:
            row.count(True)
    if story.resume_point(run) < at_least:
        newest.count(False, f"{what}: step {at_least} is gone")


def blame(fault: Fault, outcome: Outcome, sync: str, sums: Sums) -> None:
    """A launcher that is left alive tells who died, or stops as it was asked to."""
    if fault.kind in ("worker", "write"):
        row = sums.row("killed workers", "named with rank and signal, exit code 3")
        named = outcome.line.startswith(f"worker {fault.rank} was killed by SIGKILL")
        row.count(named and outcome.code == 3, f"{sync} {fault}: {outcome}")
    elif fault.kind in ("SIGTERM", "SIGINT"):
        # Asked before it has taken its first step, it has nothing to keep.
        allowed = {143: ("SIGTERM",), 130: ("SIGINT",), -15: ("SIGTERM",)}.get(outcome.code or 0, ())
        row = sums.row("signals to stop", "exit code 130 or 143, after a checkpoint")
        row.count(fault.kind in allowed, f"{sync} {fault}: {outcome}")
