"""SIGSTOP: a worker that does not move any more is named within the deadline, and one that goes on in time disturbs
nobody."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from . import story
from .count import Sums
from .kills import RESUMED, check_checkpoints, check_history, one_life
from .victim import Victim, patient, until

TIMEOUT = 2.0  # seconds that the others wait
GRACE = 8.0  # and then find out who it was, on a machine that may be busy


def stopped_worker(sync: str, rng: random.Random, folder: Path, sums: Sums) -> None:
    """One worker is stopped for good. The launcher names it, and the run is resumed."""
    run, journal = folder / "run", story.Journal(folder / "journal")
    folder.mkdir(parents=True)
    rank, step, jitter = rng.randrange(story.WORKERS), rng.randint(1, 18), rng.random() * 0.01
    what = f"{sync}: worker {rank} at step {step}"
    victim = Victim(lambda: one_life(run, sync, journal, False, None, {"timeout": patient(TIMEOUT)}), folder / "said")
    until(lambda: journal.step(0) >= step or victim.ended())
    time.sleep(jitter)
    os.kill(journal.workers(0)[rank], signal.SIGSTOP)
    began = time.monotonic()
    outcome = victim.wait(60)
    spent = time.monotonic() - began
    if outcome.code == 0:
        return  # it had ended before
    named = re.match(rf"worker {rank} (?!gave)", outcome.line) is not None
    grace, late = patient(GRACE), spent - patient(TIMEOUT)
    row = sums.row("stopped workers (SIGSTOP)", f"named with rank, {grace:g} s after the deadline at the latest")
    row.count(named and outcome.code == 3 and late < grace, f"{what}: {outcome} {spent:.1f} s")
    row.measured(late)
    sums.row("launchers that ended", "no process is left").count(victim.left_behind(15) == 0, what)
    start = story.resume_point(run)
    check_checkpoints(run, what, sums, at_least=0)
    journal.life = 1
    if not start:
        (run / "events.jsonl").unlink()
    again = Victim(lambda: one_life(run, sync, journal, bool(start), None, {}), folder / "said").wait(120)
    right = again.value == (story.undisturbed(sync), 0)
    sums.row("runs with a stopped worker", RESUMED).count(right, f"{what}: {again}")
    check_history(run, journal.agreed({0: 0, 1: start}), what, sums)


def blamed_under_load(sync: str, rng: random.Random, folder: Path, sums: Sums) -> None:
    """One worker dies, is stopped or hangs in the user's own code, while others need the processors: it is named."""
    run, journal = folder / "run", story.Journal(folder / "journal")
    folder.mkdir(parents=True)
    rank, step, kind = rng.randrange(story.WORKERS), rng.randint(2, 18), rng.choice(("dies", "is stopped", "hangs"))
    what = f"{sync}: worker {rank} {kind} at step {step}"
    if kind == "hangs":
        journal.hangs = rank, step
    victim = Victim(lambda: one_life(run, sync, journal, False, None, {"timeout": patient(TIMEOUT)}), folder / "said")
    if kind != "hangs":
        until(lambda: journal.step(0) >= step or victim.ended())
        if not victim.ended():
            os.kill(journal.workers(0)[rank], signal.SIGKILL if kind == "dies" else signal.SIGSTOP)
    outcome = victim.wait(60)
    victim.left_behind(5)
    if outcome.code != 0:  # it had ended before
        named = re.match(rf"worker {rank} (?!gave)", outcome.line) is not None
        row = sums.row("workers that die or hang, machine under load", "named with rank")
        row.count(named and outcome.code == 3, f"{what}: {outcome}")


@contextlib.contextmanager
def load(processes: int = 4) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    busy = [Victim(_compute) for _ in range(processes)]
    try:
        yield
    finally:
        for each in busy:
            each.kill_group()
            each.wait(5)


def _compute() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(10_000))


def paused_worker(sync: str, rng: random.Random, folder: Path, sums: Sums) -> None:
    """One worker, or the launcher, is stopped and goes on before the deadline: nothing happens."""
    run, journal = folder / "run", story.Journal(folder / "journal")
    folder.mkdir(parents=True)
    rank, step = rng.randrange(-1, story.WORKERS), rng.randint(1, 18)
    victim = Victim(lambda: one_life(run, sync, journal, False, None, {}), folder / "said")
    until(lambda: journal.step(0) >= step or victim.ended())
    pid = victim.pid if rank < 0 else journal.workers(0)[rank]
    if not victim.ended():
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(pid, signal.SIGCONT)
    outcome = victim.wait(60)
    right = outcome.value == (story.undisturbed(sync), 0)
    sums.row("workers and launchers paused for 1 s", "the bits of an undisturbed run").count(
        right, f"{sync}: {outcome}"
    )
