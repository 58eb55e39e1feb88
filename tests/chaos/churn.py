"""Elastic runs whose workers are killed, stopped and woken up again: the others go on, and every example counts once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import equipoise as eq
from equipoise.comm.membership import Elasticity

from . import story
from .count import Sums
from .victim import Victim, patient, until

DEADLINE = 3.0  # seconds
GRACE = 10.0  # and then the others agree on how to go on, on a machine that may be busy
EPOCHS = 20  # 120 steps
FAULTS = {signal.SIGKILL: "killed", signal.SIGSTOP: "stopped", signal.SIGTERM: "leaving"}


def choices(respawn: int) -> dict[str, Any]:
    elastic = Elasticity(1, story.WORKERS + 1, patient(DEADLINE), respawn=respawn, snapshot_every=4)
    return {"elastic": elastic, "epochs": EPOCHS, "checkpoint_every": 1000}


def churned(sync: str, rng: random.Random, folder: Path, sums: Sums, faults: int = 4) -> int:
    """Workers are killed or stopped one after the other; those that are killed are started again, and rejoin."""
    run, journal = folder / "run", story.Journal(folder / "journal")
    folder.mkdir(parents=True)
    how = choices(respawn=faults)
    if rng.random() < 0.5:
        how["partition"] = eq.partition.Queue()
    victim = Victim(lambda: story.train(run, sync, journal, **how).result, folder / "said")
    done: list[tuple[int, str]] = []  # worker, and how the others should tell of it
    for _ in range(faults):
        start = journal.last_step()
        until(lambda: victim.ended() or journal.last_step() >= start + 12)  # noqa: B023
        time.sleep(rng.random() * 0.01)
        present = journal.present()
        if victim.ended() or len(present) < 2:
            break
        worker = rng.choice(sorted(present))
        fault, generation = rng.choices(list(FAULTS), (5, 2, 1))[0], journal.generation()
        with contextlib.suppress(ProcessLookupError):
            os.kill(present[worker], fault)
            done.append((worker, FAULTS[fault]))
        if fault == signal.SIGSTOP:
            until(lambda: victim.ended() or journal.generation() > generation, DEADLINE + GRACE)  # noqa: B023
            with contextlib.suppress(ProcessLookupError):
                os.kill(present[worker], signal.SIGCONT)  # it finds that the others have gone on, and rejoins
    outcome = victim.wait(120)
    what = f"{sync}, {'queue, ' if 'partition' in how else ''}{done}"
    survived = outcome.code == 0 and outcome.value["epochs"] == EPOCHS
    sums.row("elastic runs", "end as long as they should").count(survived, f"{what}: {outcome}")
    for _, kind in done:
        sums.row(f"{kind} workers of elastic runs", "the others go on to the end").count(survived, f"{what}: {outcome}")
    sums.row("launchers that ended", "no process is left").count(victim.left_behind(15) == 0, what)
    if survived:
        count_history(outcome.value["membership"], journal, done, what, sums)
    return len(done)


def count_history(
    history: list[dict[str, Any]], journal: story.Journal, done: list[tuple[int, str]], what: str, sums: Sums
) -> None:
    wrong = story.lost_and_repeated(journal.agreed_in(history), EPOCHS)
    row = sums.row("examples of elastic runs", "each once per epoch in what counts")
    row.count(wrong == 0, f"{what}: {wrong} {history}")
    told = [(lost["worker"], lost["why"]) for row in history for lost in row["lost"]]
    named = sums.row("lost workers of elastic runs", "each named with the reason, and nobody else")
    named.count(sorted(w for w, _ in told) == sorted(w for w, _ in done), f"{what}: {told}")
    dropped = sums.row("changes of membership", "one round at the most is taken back", unit="steps")
    gone = sums.row("losses noticed", f"{patient(GRACE):g} s after the deadline at the latest")
    for change in history[1:] if history[0]["generation"] == 0 else history:
        dropped.count(change["dropped"]["steps"] <= 4, f"{what}: {change}")
        dropped.measured(change["dropped"]["steps"])
        if change["lost"]:
            gone.count(change["transition_seconds"] < patient(DEADLINE + GRACE), f"{what}: {change}")
            gone.measured(change["transition_seconds"])
