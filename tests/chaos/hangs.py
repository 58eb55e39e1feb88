"""SIGSTOP: a worker that does not move any more is named within the deadline, and one that goes on in time disturbs
nobody."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path

from . import story
from .count import Sums
from .kills import RESUMED, check_checkpoints, check_history, one_life
from .victim import Victim, until

TIMEOUT = 2.0  # seconds that the others wait
GRACE = 8.0  # and then find out who it was, on a machine that may be busy


def stopped_worker(sync: str, rng: random.Random, folder: Path, sums: Sums) -> None:
    """One worker is stopped for good. The launcher names it, and the run is resumed."""
    run, journal = folder / "run", story.Journal(folder / "journal")
    folder.mkdir(parents=True)
    rank, step, jitter = rng.randrange(story.WORKERS), rng.randint(1, 18), rng.random() * 0.01
    what = f"{sync}: worker {rank} at step {step}"
    victim = Victim(lambda: one_life(run, sync, journal, False, None, {"timeout": TIMEOUT}), folder / "said")
    until(lambda: journal.step(0) >= step or victim.ended())
    time.sleep(jitter)
    os.kill(journal.workers(0)[rank], signal.SIGSTOP)
    began = time.monotonic()
    outcome = victim.wait(60)
    spent = time.monotonic() - began
    if outcome.code == 0:
        return  # it had ended before
    named = re.match(rf"worker {rank} (?!gave)", outcome.line) is not None
    row = sums.row("stopped workers (SIGSTOP)", f"named with rank, {GRACE:g} s after the deadline at the latest")
    row.count(named and outcome.code == 3 and spent < TIMEOUT + GRACE, f"{what}: {outcome} {spent:.1f} s")
    row.measured(spent - TIMEOUT)
    sums.row("launchers that ended", "no process is there 15 s later").count(victim.left_behind(15) == 0, what)
    start = story.resume_point(run)
    check_checkpoints(run, what, sums, at_least=0)
    journal.life = 1
    if not start:
        (run / "events.jsonl").unlink()
    again = Victim(lambda: one_life(run, sync, journal, bool(start), None, {}), folder / "said").wait(120)
    right = again.value == (story.undisturbed(sync), 0)
    sums.row("runs with a stopped worker", RESUMED).count(right, f"{what}: {again}")
    check_history(run, journal.agreed({0: 0, 1: start}), what, sums)


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
    sums.row("workers and launchers paused for 1 s", "the bits of an undisturbed run").count(right, f"{sync}: {outcome}")
