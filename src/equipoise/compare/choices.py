"""`eq.compare`: one model and one data set with several choices, ranked as `equipoise compare` ranks recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.recipe import Recipe
from ..core.errors import UserError, WorkerError
from ..core.torchrun import under_torchrun
from ..loop.train import Run, train
from ..loop.until import Until
from .explain import explain
from .grid import Combination
from .plan import PlannedRun
from .table import Criterion, Row, cells, rows_of
from .write import as_markdown

_SHARED = ("seed", "out", "until", "cluster", "virtual", "workers")  # what results are only comparable with


@dataclass(frozen=True)
class Comparison:
    """What a comparison gives; printed, it is a table and a verdict."""

    rows: list[Row]  # best first
    verdict: str  # what wins, by how much, and why
    runs: dict[str, list[Run]]  # those that finished, of each choice, in the order of seeds
    criterion: Criterion

    @property
    def best(self) -> str:
        """The name of the first choice of the ranking."""
        return self.rows[0].name

    def __str__(self) -> str:
        return f"{as_markdown(*cells(self.rows, self.criterion))}\n{self.verdict}"


def compare(
    model: Any,
    loss: Any,
    data: Any,
    choices: Mapping[str, Mapping[str, Any]],
    *,
    seeds: int = 3,
    until: str | None = None,
    out: str | Path | None = None,
    **common: Any,
) -> Comparison:
    """Train with each of `choices` and each seed, one run after the other, and rank them.

    choices: by name, the arguments of `eq.train` that differ, such as {"local": {"period": 8}}; the first is the
        baseline.
    until: a target such as "accuracy=0.9": choices are ranked by the time to it (simulated seconds with `cluster`,
        seconds with virtual=False, else examples), without one by the last accuracy or loss.
    out: a folder for the runs, NAME/seed-N each; none is kept if left out.
    common: the arguments of `eq.train` that all have in common.

    A choice that fails is ranked last, with its reason; where all fail, the first error is raised.
    """
    _check(choices, seeds)
    target = Until.parse(until) if until is not None else None
    if target is not None:
        common.setdefault("evaluate_every", 0.25)
    planned: list[PlannedRun] = []
    done: dict[str, list[Run]] = {name: [] for name in choices}
    errors: list[Exception] = []
    for seed in range(seeds):
        for name, choice in choices.items():
            combination = Combination(name, Recipe())
            folder = Path(out) / combination.slug / f"seed-{seed}" if out is not None else None
            one = PlannedRun(combination, seed, folder or Path(), Recipe())
            planned.append(one)
            try:
                run = train(model, loss, data, until=until, seed=seed, out=folder, **{**common, **choice})
            except (UserError, WorkerError) as error:
                one.state, one.failure = "failed", str(error).splitlines()[0]
                errors.append(error)
                continue
            one.state, one.result = "done", run.result
            done[name].append(run)
    if len(errors) == len(planned):
        raise errors[0]
    first = next(run.result["models"]["mean"] for runs in done.values() for run in runs)
    metric = target.metric if target is not None else "accuracy" if "accuracy" in first else "loss"
    virtual = common.get("virtual", True)
    clock = "simulated_seconds" if common.get("cluster") is not None else "samples" if virtual else "seconds"
    criterion = Criterion(clock, target, metric)
    rows = rows_of(planned, criterion)
    return Comparison(rows, explain(rows, criterion, next(iter(choices))), done, criterion)


def _check(choices: Mapping[str, Mapping[str, Any]], seeds: int) -> None:
    if under_torchrun():
        raise UserError("a comparison starts its own workers: run it without torchrun, virtual=False forks processes")
    if not isinstance(choices, Mapping) or not choices:
        raise UserError('nothing to compare: pass choices such as {"all-reduce": {}, "local": {"period": 8}}')
    if seeds < 1:
        raise UserError(f"seeds = {seeds}: must be at least 1")
    slugs = [Combination(name, Recipe()).slug for name in choices]
    for name, choice in choices.items():
        shared = [key for key in choice if key in _SHARED]
        if shared:
            raise UserError(f"choice {name!r}: {shared[0]} cannot differ: pass it to eq.compare for all of them")
        if slugs.count(Combination(name, Recipe()).slug) > 1:
            raise UserError(f"choice {name!r} has the folder of another one: choose names with other letters")
