"""An elastic run in which a worker is killed every 50 rounds: what is lost, how far it gets, where it ends."""

from __future__ import annotations

import os
import random
import signal
import statistics
from pathlib import Path
from typing import Any

from equipoise.comm.membership import Elasticity

from . import story
from .count import Sums
from .victim import Victim, until

STEPS_OF_ROUND, ROUNDS = 10, 50
PAUSE, RATE = 0.02, 0.005  # seconds of a batch; learning rate


def killed_every_50_rounds(sync: str, rng: random.Random, folder: Path, sums: Sums, kills: int = 3) -> None:
    folder.mkdir(parents=True)
    journal = story.Journal(folder / "journal", PAUSE, RATE)
    between = STEPS_OF_ROUND * ROUNDS
    elastic = Elasticity(1, story.WORKERS, 30.0, respawn=kills)
    epochs = -(-(kills + 1) * between // story.STEPS_OF_EPOCH)
    how: dict[str, Any] = {"epochs": epochs, "period": STEPS_OF_ROUND, "checkpoint_every": 10**6, "log_every": 1000}
    how |= {"evaluate_every": 1000}
    victim = Victim(lambda: story.train(folder / "run", sync, journal, elastic=elastic, **how).result, folder / "said")
    struck = 0
    for kill in range(1, kills + 1):
        until(lambda: victim.ended() or journal.last_step() >= kill * between, 600, 0.05)  # noqa: B023
        present = journal.present()
        if not victim.ended():
            os.kill(present[rng.choice(sorted(present))], signal.SIGKILL)
            struck += 1
    outcome = victim.wait(600)
    survived = outcome.code == 0 and struck == kills
    if not sums.row("workers killed every 50 rounds", "the run ends").count(survived, f"{sync}: {outcome}"):
        return
    history = [row for row in outcome.value["membership"] if row["generation"]]
    agreed = journal.agreed_in(history)
    wrong = story.lost_and_repeated(agreed, epochs)
    sums.row("examples of elastic runs", "each once per epoch in what counts").count(wrong == 0, f"{sync}: {wrong}")
    rounds = sums.row("rounds taken back for a kill", "one at the most", unit="rounds")
    for row in history:
        dropped = row["dropped"]["steps"] / STEPS_OF_ROUND
        rounds.count(dropped <= 1, f"{sync}: {row}")
        rounds.measured(dropped)
    share = goodput(journal, agreed)
    good = sums.row("goodput with a kill every 50 rounds", "90 % of the ideal of those present", unit="%")
    good.count(share >= 0.9, f"{sync}: {share:.3f}")
    good.measured(100 * share, worse=min)
    quiet = story.Journal(Path(os.devnull), 0.0, RATE)
    losses = [
        story.train(Path(), sync, quiet, virtual=True, out=None, seed=seed, **how).result["models"]["mean"]["loss"]
        for seed in range(3)
    ]
    noise = max(3 * statistics.stdev(losses), 1e-3)
    apart = outcome.value["models"]["mean"]["loss"] - statistics.mean(losses)
    ends = sums.row("losses at the end of such runs", "within 3 deviations of undisturbed seeds", unit="deviations")
    ends.count(abs(apart) <= noise, f"{sync}: {apart} {losses}")
    ends.measured(3 * abs(apart) / noise)


def goodput(journal: story.Journal, agreed: list[story.Line]) -> float:
    """Examples that count, over those that the workers present would have taken if no time were lost to changes.

    The rate of a generation is that between its first and its last batch; the time before its first one, since the last
    one of the generation before, is lost at that rate, and so is the work that was taken back.
    """
    lines = [line for line in journal.lines() if line.examples]
    counted, ideal, end = sum(len(line.examples) for line in agreed), 0.0, 0
    for generation in sorted({line.life for line in lines}):
        own = [line for line in lines if line.life == generation]
        begin, last = min(line.milliseconds for line in own), max(line.milliseconds for line in own)
        samples = sum(len(line.examples) for line in own)
        rate = samples / max(1, last - begin)
        ideal += samples + (rate * (begin - end) if end and last > begin else 0.0)
        end = last
    return counted / ideal
