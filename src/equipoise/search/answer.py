"""The answer of a search: a recipe that runs, what it will cost, what lost and why, and how sure all of it is.

OUT/recipe.toml       the choice, for real workers; OUT/runner-up.toml the next one
OUT/plan.md, .json    the answer, and all that was tried
OUT/report.html       the finals
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from ..compare.plan import PlannedRun
from ..compare.table import Row, cells, rows_of, two_digits
from ..compare.write import as_markdown
from ..config.recipe import Recipe
from ..core.errors import UserError
from ..observe.observer import plain
from .finals import behind, costs_of, interval
from .halving import Search
from .retime import Variant, sentences

SIMULATION_ERROR = 0.1  # of a simulated time against real workers; docs/clusters.md has the measurements
_WORTH_SAYING = 0.05
_COARSE = 0.1  # of the time to the target, between two evaluations
SECONDS = (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3))
BYTES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_SEARCHED = ("cluster", "virtual", "budget", "out", "keep", "checkpoint_every")  # settings of the search alone


class Cost(NamedTuple):
    """Of the choice on the cluster: the mean over seeds, and an interval of the seconds in which 80 % of new runs lie.

    The time is that of training. Starting the workers, checkpoints and evaluations come on top; the latter send the
    mean model once each, in double precision.
    """

    seconds: float
    low: float
    high: float
    bytes: float
    evaluations: float  # seconds

    @classmethod
    def of(cls, runs: list[PlannedRun], search: Search) -> Cost:
        at = [run.result["reached"] or run.result for run in runs]
        seconds = [float(cost["simulated_seconds"]) for cost in at]
        evaluations = [run.result["epochs"] / run.recipe.plain()["evaluate_every"] for run in runs]
        each = search.cluster.mean(2 * search.model_bytes)
        mean, sent, count = (sum(v) / len(at) for v in (seconds, [float(c["bytes"]) for c in at], evaluations))
        return cls(mean, *interval(seconds, SIMULATION_ERROR), sent, count * each)


class Answer(NamedTuple):
    """Sentences, and what stands in the files."""

    sentences: list[str]
    cost: Cost
    rows: list[Row]
    table: tuple[list[str], list[list[str]]]
    finals: list[PlannedRun]
    variants: list[Variant]


def answer(search: Search, finals: list[PlannedRun], variants: list[Variant], price: float | None) -> Answer:
    rows = in_order(rows_of(finals, search.criterion), search.standing)
    if not rows:
        raise UserError("no final run ended: give the search more --minutes")
    winner, rest = rows[0], rows[1:]
    found = [f"Run {winner.name}."]
    runs = [run for run in finals if run.combination.name == winner.name and run.state == "done"]
    cost = Cost.of(runs, search)
    found.append(_cost_in_words(cost, [run.result for run in runs], search, price))
    if cost.evaluations > _WORTH_SAYING * cost.seconds:
        every = runs[0].recipe.plain()["evaluate_every"]
        found.append(f"Evaluations, one in {every:g} epochs, take {in_units(cost.evaluations, SECONDS)} more.")
    found += _resolution(cost, runs, search)
    if rest:
        apart = search.goal.until is None or _apart(winner, rest[0], finals, search)
        found.append(_runner_up(winner, rest[0], search, apart))
    found += sentences(variants, winner.name) if search.goal.minimise == "time" else []
    if not search.left():
        found.append("The minutes were over before the search had ended: more of them may find a better choice.")
    return Answer(found, cost, rows, cells(rows, search.criterion), finals, variants)


def in_order(rows: list[Row], standing: list[str]) -> list[Row]:
    """The rows of finished finalists as they stand; those that have no place behind them, as they come."""
    place = {name: number for number, name in enumerate(standing)}
    order = sorted((row for row in rows if row.finished), key=lambda row: place.get(row.name, len(place)))
    for number, row in enumerate(order):
        row.rank = number + 1
    return order


def _apart(winner: Row, second: Row, finals: list[PlannedRun], search: Search) -> bool:
    costs = costs_of(finals, search.criterion)
    return behind(costs[winner.name], costs[second.name])


def _resolution(cost: Cost, runs: list[PlannedRun], search: Search) -> list[str]:
    """The target is noticed at an evaluation: with few of them, times differ by whole ones."""
    every = float(runs[0].recipe.plain()["evaluate_every"])
    share = every * len(runs) / sum(run.result["epochs"] for run in runs)
    if search.goal.until is None or share <= _COARSE:
        return []
    return [
        f"The target is noticed at an evaluation, and these are {share:.0%} of the time apart: a smaller "
        "--evaluate-every tells choices apart better."
    ]


def _cost_in_words(cost: Cost, results: list[dict[str, Any]], search: Search, price: float | None) -> str:
    target = f"{search.goal.until} in" if search.goal.until is not None else "A run of"
    low, mean, high = (in_units(seconds, SECONDS) for seconds in (cost.low, cost.seconds, cost.high))
    text = f"{target} {mean} ({low} to {high}), {in_units(cost.bytes, BYTES)} sent by all workers"
    if price is not None:
        hours = search.cluster.size / 3600 * price
        text += f", {cost.seconds * hours:.2g} in money ({cost.low * hours:.2g} to {cost.high * hours:.2g})"
    if search.goal.until is None:
        values = [result["models"]["mean"] for result in results]
        name = search.goal.metric if search.goal.metric in values[0] else "loss"
        text += f", final {name} {sum(value[name] for value in values) / len(values):.3g}"
    missed = sum(result["reached"] is None for result in results) if search.goal.until is not None else 0
    text += f"; {missed} of {len(results)} seeds did not reach the target in time" if missed else ""
    return f"{text[0].upper()}{text[1:]}."


def _runner_up(winner: Row, second: Row, search: Search, apart: bool) -> str:
    """How far behind the next one is, and why: more examples, or more time for each."""
    criterion = search.criterion
    if search.goal.until is None:
        return f"Runner-up: {second.name}, with {criterion.metric} {second.metric.format()}."
    if not second.complete:
        return f"Runner-up: {second.name}, which reached the target with {second.reached} of {second.seeds} seeds."
    if search.goal.minimise == "bytes":
        return f"Runner-up: {second.name}, {in_units(second.bytes.mean, BYTES)}."
    text = f"Runner-up: {second.name}, {in_units(second.time.mean, SECONDS)}"
    if not apart:
        steadier = second.time.mean < winner.time.mean
        return f"{text}: no clear difference" + (", and its slow runs take longer." if steadier else ".")
    examples = second.samples.mean / winner.samples.mean
    pace = second.time.mean / winner.time.mean / examples
    why = (
        f"{two_digits(examples)} times as many examples"
        if examples > pace
        else f"{two_digits(pace)} times as long for an example"
    )
    return f"{text}. It needs {why}."


def real_recipe(run: PlannedRun, search: Search) -> Recipe:
    """The recipe of a finalist for workers that exist: without the simulation, and it ends where the goal says.

    It evaluates as often as the search did, so that the target is noticed when it was predicted.
    """
    given = search.recipe.settings
    table: dict[str, Any] = {"workers": search.cluster.size, "seed": given.get("seed", 0)}
    table |= {name: given[name] for name in ("keep", "checkpoint_every") if name in given}
    if math.isfinite(search.goal.seconds):
        table["budget"] = f"{search.goal.seconds:g}s"
    if math.isfinite(search.goal.bytes):
        table["steps"] = max(1, int(run.result["steps"] * min(1.0, search.goal.bytes / max(1, run.result["bytes"]))))
    return run.recipe.without(*_SEARCHED, "seed").merged(table)


def write(found: Answer, search: Search) -> list[Path]:
    out = search.out
    names = [row.name for row in found.rows]
    by_name = {run.combination.name: run for run in reversed(found.finals) if run.state == "done"}
    paths = [out / "recipe.toml", *([out / "runner-up.toml"] if len(names) > 1 else [])]
    for name, path in zip(names, paths, strict=False):
        real_recipe(by_name[name], search).dump(path)
    content = {
        "goal": search.goal.name,
        "answer": found.sentences,
        "seconds": found.cost.seconds,
        "interval": [found.cost.low, found.cost.high],
        "bytes": found.cost.bytes,
        "evaluations": found.cost.evaluations,
        "finals": [{"choice": row.name, **row.time._asdict(), "reached": row.reached} for row in found.rows],
        "other_clusters": [variant._asdict() for variant in found.variants],
        "rungs": [
            {
                "what": rung.what,
                "simulated_seconds": rung.seconds,
                "trials": [
                    {"choice": t.candidate.name, "reached": t.reached, "score": t.score[1]} for t in rung.trials
                ],
            }
            for rung in search.rungs
        ],
    }
    text = "\n".join(found.sentences) + "\n\n" + as_markdown(*found.table) + "\n" + _trials(search)
    for name, body in (("plan.json", json.dumps(plain(content), indent=1) + "\n"), ("plan.md", text)):
        try:
            (out / name).write_text(body, encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {out / name}: {error.strerror}") from None
        paths.append(out / name)
    return paths


def _trials(search: Search) -> str:
    """All that was tried, as markdown."""
    lines = []
    for rung in search.rungs:
        lines.append(f"\n{rung.what[0].upper()}{rung.what[1:]}, at most {rung.seconds:.3g} simulated s each\n")
        for trial in rung.trials:
            value = abs(trial.score[1])
            lines.append(
                f"- {trial.candidate.name}: " + (f"target at {value:.3g}" if trial.reached else f"{value:.3g}")
            )
    return "\n".join(lines) + "\n"


def in_units(value: float, units: tuple[tuple[str, float], ...]) -> str:
    """1,234,567 bytes as 1.2 MB: two significant digits in the largest unit that fits."""
    name, size = next((unit for unit in units if value >= unit[1]), units[-1])
    return f"{two_digits(value / size)} {name}"
