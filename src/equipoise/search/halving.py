"""Successive halving, then a walk to better neighbours, then seeds; all on virtual workers of the described cluster.

1. One candidate runs at several learning rates, and the best of these is where all others begin. All starts run for the
   same short simulated time. The better half runs for twice the time, and so on, until the best one reaches the target,
   or the limit of the goal (Jamieson & Talwalkar 2016). The best one of every sync survives the first rung: methods
   with rare rounds begin slowly.
2. Neighbours of the best three, then of the best one, until none is better; then with smaller steps of the learning
   rate. Whatever comes out best runs with a second seed, and the mean of the two counts: else the walk would follow
   luck. A run ends when it has taken 1.2 times as long as the best one so far.
3. The best five run with several seeds; those that these do not tell apart with more of them (finals.py).

The search ends early when its minutes are over; the last third of them belongs to the seeds.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..compare.display import Display, outcome
from ..compare.grid import Combination
from ..compare.plan import PlannedRun, survey, with_defaults
from ..compare.pool import default_jobs, run_all
from ..compare.table import Criterion
from ..config.recipe import Recipe
from ..core.errors import UserError
from ..simulate.cluster import Cluster
from .finals import costs_of, preferred, remaining
from .goal import Goal
from .space import LR_STEP, Candidate, neighbours, pilots, starts, usable

CENTRES = 3  # of the first step of the walk
FINALISTS = 5
_FIRST_EPOCHS, _FIRST_STEPS = 3.0, 64  # of all workers without waiting, the first rung
_MOST_EPOCHS = 100.0
_PATIENCE = 1.2  # a run has lost when it has taken so much longer than the best one: seeds differ by that
_SEARCH_SEEDS = 2  # of the best one; all others have the first of them
_SLACK = 2.0  # finals may take so much longer than the best run of the search
_FOR_SEARCH = 0.67  # of the minutes
_NEVER = 10**9  # steps
_MORE_SEEDS = 3  # times as many at the most, where the first ones do not tell finalists apart


class Trial(NamedTuple):
    """One run of a candidate, and its score; smaller is better."""

    candidate: Candidate
    run: PlannedRun
    score: tuple[float, float]  # the mean over its seeds
    seeds: int = 1

    @property
    def reached(self) -> bool:
        return self.score[0] == 0


class Rung(NamedTuple):
    """What was compared with each other, best first."""

    what: str
    seconds: float  # simulated, at most
    trials: list[Trial]


class Stopped(Exception):
    """A signal came; `code` is the exit code."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


class Search:
    """The state of a search: what was tried, and the time that is left."""

    def __init__(
        self,
        recipe: Recipe,
        cluster: Cluster,
        goal: Goal,
        out: Path,
        *,
        examples: int,
        parameters: int,
        minutes: float,
        jobs: int | None = None,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.recipe, self.cluster, self.goal, self.out = recipe, cluster, goal, out
        self.jobs, self.quiet, self.clock = jobs, quiet, clock
        self.rungs: list[Rung] = []
        self.best: dict[str, Trial] = {}  # by candidate: its last trial
        self.racing: list[str] = []  # finalists that go on, best first
        self.standing: list[str] = []  # all finalists, best first
        self.epoch = examples / sum(cluster.rates)  # seconds, without waiting or communication
        self.model_bytes = 4 * parameters
        self.began, self.minutes = clock(), minutes

    def left(self, share: float = 1.0) -> bool:
        """Is some of this share of the minutes left?"""
        return self.clock() - self.began < 60 * self.minutes * share

    def candidates(self) -> None:
        """The first two parts."""
        batch = 32 * self.cluster.size / sum(self.cluster.rates)
        longest = min(self.goal.seconds, _MOST_EPOCHS * self.epoch)
        seconds = min(longest, max(_FIRST_EPOCHS * self.epoch, _FIRST_STEPS * batch))
        trials = self.compare(pilots(self.recipe, self.cluster), seconds, "learning rates")
        lr = trials[0].candidate.table["lr"] if trials else None
        self.halve(starts(self.recipe, self.cluster, lr), seconds, longest)
        self.walk()

    def halve(self, candidates: list[Candidate], seconds: float, longest: float) -> None:
        first = True
        while candidates:
            trials = self.compare(candidates, seconds, f"{len(candidates)} candidates")
            if not trials or trials[0].reached or seconds >= longest or not self.left(_FOR_SEARCH):
                return
            keep = max(CENTRES + 1, -(-len(trials) // 2))
            survivors = [trial.candidate for trial in trials[:keep]]
            if first:
                seen = {candidate.sync for candidate in survivors}
                for trial in trials[keep:]:
                    if trial.candidate.sync not in seen:
                        seen.add(trial.candidate.sync)
                        survivors.append(trial.candidate)
            candidates, first, seconds = survivors, False, min(longest, 2 * seconds)

    def walk(self) -> None:
        """To better neighbours, as long as there are some; where there are none, with half the step of the rate."""
        self.confirm()
        centres, notches = [trial.candidate for trial in self.ranking()[:CENTRES]], LR_STEP
        while notches and self.left(_FOR_SEARCH):
            before = self.ranking()[0]
            near = [c for centre in centres for c in neighbours(centre, self.recipe, self.cluster, notches)]
            new = {c.name: c for c in near if c.name not in self.best}
            if new:
                self.compare(usable(new.values(), self.recipe), self.bound(), f"neighbours of {before.candidate.name}")
                self.confirm()
            best = self.ranking()[0]
            centres = [best.candidate]
            notches = notches if best.score < before.score else notches // 2

    def confirm(self) -> None:
        """Run the best one with a second seed, until one is best that has two: its score is their mean."""
        confirmed = []
        while self.goal.until is not None and self.left(_FOR_SEARCH):
            best = self.ranking()[0]
            if not best.reached or best.seeds == _SEARCH_SEEDS:
                break
            longest = _SLACK * float(best.run.result["simulated_seconds"])
            again = self.planned(best.candidate, longest, best.seeds, "again")
            self.run([again], over=lambda: not self.left(_FOR_SEARCH))
            if again.state != "done":
                break
            reached, cost = self.goal.score(again.result, again.folder)
            if reached != 0:  # it costs more than it had
                cost = _SLACK * best.score[1]
            score = (0.0, (best.score[1] * best.seeds + cost) / (best.seeds + 1))
            self.best[best.candidate.name] = best._replace(score=score, seeds=best.seeds + 1)
            confirmed.append(self.best[best.candidate.name])
        if confirmed:
            self.rungs.append(Rung("the best again with a second seed", self.bound(), confirmed))

    def bound(self) -> float:
        """Simulated seconds after which a run has lost."""
        best = self.ranking()[0]
        if best.reached and self.goal.minimise == "time":
            return _PATIENCE * best.score[1]
        return min(self.goal.seconds, float(best.run.result["simulated_seconds"]))

    def ranking(self) -> list[Trial]:
        """All candidates by their last trial: those that went further first, then by score."""
        return sorted(self.best.values(), key=lambda trial: (trial.score[0], self._cut(trial), trial.score[1]))

    def _cut(self, trial: Trial) -> float:
        """Those that were cut early come after those that ran longer."""
        return 0.0 if trial.reached else -float(trial.run.recipe.settings["budget"].removesuffix("s"))

    def finals(self, seeds: int) -> list[PlannedRun]:
        """The best candidates with several seeds, none of them one of the search: it chose those they were kind to.

        Those that are behind after `seeds` of them drop out, the others go on with up to three times as many. A seed
        that the minutes cut short counts for none of them.
        """
        best = self.finalists()
        if not best:
            return []
        longest = max(float(trial.run.result["simulated_seconds"]) for trial in best)
        seconds = longest * (_SLACK if self.goal.until is not None else 1.0)
        by_seed = [self._with_seed(best, seconds, seed) for seed in range(seeds)]
        first, runs = by_seed[0], [run for own in by_seed for run in own]
        # The first seed of the winner always runs: without a run there is no answer.
        self.run(runs, over=lambda: not self.left() and any(run.state == "done" for run in first))
        runs = [run for own in by_seed if own is first or _ended(own) for run in own if run.state in ("done", "failed")]
        self.tell(f"{len(best)} finalists with {seeds} seeds")
        for seed in range(seeds, _MORE_SEEDS * seeds):
            names = self.drop(runs)
            if len(names) < 2 or not self.left():
                break
            more = self._with_seed([trial for trial in best if trial.candidate.name in names], seconds, seed)
            self.run(more, over=lambda: not self.left())
            runs += more if _ended(more) else []
        self.drop(runs)
        return runs

    def drop(self, runs: list[PlannedRun]) -> list[str]:
        """The finalists that go on; notes the order of all, those that drop out after those that went on."""
        costs = costs_of(runs, self.criterion) if self.goal.until is not None else {}
        out = self.standing[len(self.racing) :] if self.standing else []
        costs = {name: own for name, own in costs.items() if name not in out}
        names = remaining(costs)
        order = preferred({name: costs[name] for name in names})
        self.standing = order + [name for name in preferred(costs) if name not in names] + out
        self.racing = order
        return order

    def _with_seed(self, trials: list[Trial], seconds: float, seed: int) -> list[PlannedRun]:
        return [self.planned(trial.candidate, seconds, _SEARCH_SEEDS + seed, "finals") for trial in trials]

    def finalists(self) -> list[Trial]:
        """The best ones that differ in more than a learning rate, one of another sync among them if there is one."""
        found: dict[tuple[str, ...], Trial] = {}
        for trial in self.ranking():
            if trial.reached or self.goal.until is None:
                found.setdefault(trial.candidate.but_rate, trial)
        trials = list(found.values())
        other = [trial for trial in trials if trial.candidate.sync != trials[0].candidate.sync]
        near = [trial for trial in trials if trial not in other[:1]]
        return sorted(near[: FINALISTS - len(other[:1])] + other[:1], key=lambda trial: trial.score)

    def compare(self, candidates: Iterable[Candidate], seconds: float, what: str) -> list[Trial]:
        """Run all for the same simulated time; what is done, best first."""
        pairs = [(c, self.planned(c, seconds, 0, f"{seconds:.6g}s")) for c in candidates]
        self.run([run for _, run in pairs], over=lambda: not self.left(_FOR_SEARCH) and bool(self.best))
        trials = [Trial(c, run, self.goal.score(run.result, run.folder)) for c, run in pairs if run.state == "done"]
        trials.sort(key=lambda trial: trial.score)
        for trial in trials:
            self.best[trial.candidate.name] = trial
        if not trials and not self.best and pairs:
            raise UserError(f"no candidate could be run: {next(run.failure for _, run in pairs if run.failure)}")
        if pairs:
            self.rungs.append(Rung(what, seconds, trials))
            self.tell(what)
        return trials

    def tell(self, what: str) -> None:
        """How far the search is, in one line."""
        if not self.quiet and self.best:
            best = self.ranking()[0]
            spent, minutes = (self.clock() - self.began) / 60, self.minutes
            found = f"{best.candidate.name}: {outcome(best.run, self.criterion)}"
            print(f"{spent:.1f} of {minutes:g} min  {what}; best so far {found}", file=sys.stderr, flush=True)

    def planned(
        self, candidate: Candidate, seconds: float, seed: int, part: str, more: dict[str, Any] | None = None
    ) -> PlannedRun:
        base = self.recipe.settings.get("seed", 0)
        # A run that is stopped writes a checkpoint anyway; a short one needs no other.
        table = {"budget": f"{seconds:.6g}s", "seed": base + seed, "checkpoint_every": _NEVER, **(more or {})}
        recipe = self.recipe.merged(candidate.table).merged(table)
        one = Combination(candidate.name, recipe)
        folder = self.out / "runs" / one.slug / f"{part}-seed-{base + seed}"
        return PlannedRun(one, base + seed, folder, with_defaults(recipe).merged({"out": str(folder)}))

    def run(self, runs: list[PlannedRun], over: Callable[[], bool]) -> None:
        survey(runs)
        with Display(runs, self.criterion, quiet=self.quiet or not sys.stderr.isatty()) as display:
            code = run_all(runs, self.jobs or default_jobs(runs), display.update, display.finished, over=over)
        if code:
            raise Stopped(code)
        for run in [run for run in runs if run.state == "done"]:
            shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)  # as large as the models of all workers
            reached = run.result.get("reached")
            if reached is not None and not reached["rounds"]:
                self.add_a_round(reached)

    def add_a_round(self, reached: dict[str, Any]) -> None:
        """Before the first round no worker has the mean that reached the target: they pay for one."""
        reached["simulated_seconds"] += self.cluster.mean(self.model_bytes)
        reached["bytes"] += 2 * (self.cluster.size - 1) * self.model_bytes

    @property
    def criterion(self) -> Criterion:
        name = "simulated_seconds" if self.goal.minimise == "time" else "bytes"
        return Criterion(name, self.goal.until, self.goal.metric)


def _ended(runs: list[PlannedRun]) -> bool:
    return all(run.state in ("done", "failed") for run in runs)
