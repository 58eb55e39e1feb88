"""From results to ranked rows: what the target cost each choice, with the spread over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import UserError
from ..loop.until import Until

if TYPE_CHECKING:
    from .plan import Task

SPENT = ("compute", "wait", "communicate")
_CLOCKS = {"simulated_seconds": "simulated s", "seconds": "s", "samples": "examples"}


class Criterion(NamedTuple):
    """By what choices are ranked: which clock, which target, which metric."""

    name: str  # a key of result.json
    until: Until | None
    metric: str

    @property
    def unit(self) -> str:
        return _CLOCKS[self.name]


class Spread(NamedTuple):
    """Mean and standard deviation over seeds; NaN where there is one seed or none."""

    mean: float
    deviation: float
    size: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        found = list(values)
        if not found:
            return cls(math.nan, math.nan, 0)
        deviation = statistics.stdev(found) if len(found) > 1 and all(map(math.isfinite, found)) else math.nan
        return cls(statistics.fmean(found), deviation, len(found))

    def words(self, kind: str = "number") -> str:
        if not self.size:
            return "-"
        scale, unit = byte_unit(self.mean) if kind == "bytes" else (1.0, "")
        digits = 0 if abs(self.mean / scale) >= 1000 else max(0, 2 - _exponent(self.mean / scale))
        text = f"{self.mean / scale:,.{min(digits, 4)}f}"
        if self.size > 1:
            text += f" ± {self.deviation / scale:,.{min(digits, 4)}f}"
        return text + unit


@dataclass
class Row:
    """One choice over all its seeds."""

    name: str
    seeds: int
    failure: str = ""
    failed: int = 0
    reached: int = 0
    rank: int = 0
    time: Spread = field(default_factory=lambda: Spread.of([]))  # to the target; to the end where there is none
    bytes: Spread = field(default_factory=lambda: Spread.of([]))
    rounds: Spread = field(default_factory=lambda: Spread.of([]))
    samples: Spread = field(default_factory=lambda: Spread.of([]))
    metric: Spread = field(default_factory=lambda: Spread.of([]))
    spent: dict[str, float] = field(default_factory=dict)  # seconds of the average worker: compute, wait, communicate

    @property
    def complete(self) -> bool:
        """Has every seed reached the target?"""
        return self.reached == self.seeds > 0

    @property
    def waiting(self) -> float:
        """The part of its time that the average worker waits; NaN where time was not accounted for."""
        return self.spent["wait"] / sum(self.spent.values()) if self.spent else math.nan

    @property
    def finished(self) -> bool:
        return self.metric.size > 0


def measure_of(tasks: list[Task]) -> Criterion:
    """Simulated seconds on a described cluster, real ones on processes; examples where virtual workers have no clock."""
    plain = tasks[0].recipe.plain()
    if len({task.recipe.plain()["until"] for task in tasks}) > 1:
        raise UserError("one target for all, to compare by; the recipes have several: give --until")
    until = Until.parse(plain["until"]) if plain["until"] is not None else None
    clock = "simulated_seconds" if plain["cluster"] is not None else "samples" if plain["virtual"] else "seconds"
    metric = until.metric if until is not None else "accuracy"
    return Criterion(clock, until, metric)


def rows_of(tasks: list[Task], measure: Criterion) -> list[Row]:
    """A row per choice, best first."""
    by_name: dict[str, list[Task]] = {}
    for task in tasks:
        by_name.setdefault(task.combination.name, []).append(task)
    rows = [summary(name, own, measure) for name, own in by_name.items()]
    return ranked(rows, measure)


def summary(name: str, tasks: list[Task], measure: Criterion) -> Row:
    row = Row(name, seeds=len(tasks))
    failures = [task.failure for task in tasks if task.state == "failed"]
    row.failure, row.failed = failures[0] if failures else "", len(failures)
    results = [task.result for task in tasks if task.state == "done"]
    # What a target cost is known for those who reached it; what a run cost, for all.
    met = [r["reached"] for r in results if r.get("reached") is not None]
    row.reached = len(met)
    costs = met or results
    row.time, row.bytes, row.rounds, row.samples = (
        Spread.of(float(cost[key]) for cost in costs) for key in (measure.name, "bytes", "rounds", "samples")
    )
    row.metric = Spread.of(metric_of(result, measure.metric)[1] for result in results)
    if measure.name != "samples":
        row.spent = spent_of(results)
    return row


def metric_of(result: dict[str, Any], metric: str) -> tuple[str, float]:
    """The better of the mean and the centre model, by `metric` or, where that is not measured, by the loss."""
    found = [result["models"][name] for name in ("mean", "centre") if name in result["models"]]
    name = metric if metric in found[0] else "loss"
    values = [float(metrics[name]) for metrics in found]
    return name, max(values) if name == "accuracy" else min(values)


def spent_of(results: list[dict[str, Any]]) -> dict[str, float]:
    """Where the time of the average worker went; empty where it was not accounted for."""
    workers = [row for result in results for row in result["workers"]]
    sums = {name: sum(row.get(name) or 0.0 for row in workers) for name in SPENT}
    return {name: value / len(workers) for name, value in sums.items()} if sum(sums.values()) > 0 else {}


def ranked(rows: list[Row], measure: Criterion) -> list[Row]:
    """Who reached the target with every seed by time, then who did with some, then the others by metric, failures last."""
    best = -1.0 if measure.metric == "accuracy" else 1.0

    def key(row: Row) -> tuple[float, ...]:
        if not row.finished:
            return (3.0,)
        if row.complete:
            return (0.0, row.time.mean, row.bytes.mean)
        if row.reached:
            return (1.0, -row.reached / row.seeds, row.time.mean)
        value = row.metric.mean
        return (2.0, math.inf if math.isnan(value) else best * value)

    found = sorted(rows, key=key)
    for place, row in enumerate(found):
        tied = place > 0 and key(row) == key(found[place - 1])
        row.rank = found[place - 1].rank if tied else place + 1
    return found


def cells(rows: list[Row], measure: Criterion) -> tuple[list[str], list[list[str]]]:
    """The table in words: a heading and a row per choice."""
    target = f"to {measure.until}" if measure.until is not None else "in all"
    head = ["", "choice", f"{measure.unit} {target}", "bytes", "rounds", f"final {measure.metric}", "reached", "wait"]
    if measure.name != "samples":
        head.insert(3, "examples")
    body = []
    for row in rows:
        if not row.finished:
            body.append([str(row.rank), row.name, f"failed: {row.failure}", *[""] * (len(head) - 3)])
            continue
        never = measure.until is not None and not row.reached
        line = [
            str(row.rank),
            row.name,
            f"not in {row.time.words()}" if never else row.time.words(),
            row.bytes.words("bytes"),
            row.rounds.words(),
            row.metric.words(),
            f"{row.reached} of {row.seeds}" + (f", {row.failed} failed" if row.failed else ""),
            f"{row.waiting:.0%}" if row.spent else "",
        ]
        if measure.name != "samples":
            line.insert(3, row.samples.words())
        body.append(line)
    empty = [i for i in range(3, len(head)) if not any(line[i] for line in body)]
    if measure.until is None:
        empty.append(head.index("reached"))
    kept = [i for i in range(len(head)) if i not in empty]
    return [head[i] for i in kept], [[line[i] for i in kept] for line in body]


def time_words(value: float, measure: Criterion) -> str:
    return f"{Spread(value, math.nan, 1).words()} {measure.unit}"


def byte_unit(value: float) -> tuple[float, str]:
    for factor, unit in ((1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB")):
        if value >= factor:
            return factor, unit
    return 1.0, " B"


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
