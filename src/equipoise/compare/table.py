"""From results to ranked rows: what each choice spent to reach the target, with the spread over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import UserError, did_you_mean
from ..loop.until import Until

if TYPE_CHECKING:
    from .plan import PlannedRun

SPENT = ("compute", "wait", "communicate")
_CLOCKS = {"simulated_seconds": "simulated s", "seconds": "s", "samples": "examples", "bytes": "bytes"}


RANKINGS = ("time", "goodput")


class Criterion(NamedTuple):
    """How choices are ranked: by which clock, to which target, by which metric; or by goodput."""

    name: str  # a key of result.json
    until: Until | None
    metric: str
    by: str = "time"

    @property
    def unit(self) -> str:
        return _CLOCKS[self.name]


class Spread(NamedTuple):
    """Mean and standard deviation over seeds. The deviation is NaN for a single seed, both are NaN for none."""

    mean: float
    deviation: float
    size: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        sample = list(values)
        if not sample:
            return cls(math.nan, math.nan, 0)
        deviation = statistics.stdev(sample) if len(sample) > 1 and all(map(math.isfinite, sample)) else math.nan
        return cls(statistics.fmean(sample), deviation, len(sample))

    def format(self, kind: str = "number") -> str:
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
    baseline: bool = False  # is it what the others are compared with?
    time: Spread = field(default_factory=lambda: Spread.of([]))  # to the target; to the end of the run if there is none
    bytes: Spread = field(default_factory=lambda: Spread.of([]))
    rounds: Spread = field(default_factory=lambda: Spread.of([]))
    samples: Spread = field(default_factory=lambda: Spread.of([]))
    metric: Spread = field(default_factory=lambda: Spread.of([]))
    goodput: Spread = field(default_factory=lambda: Spread.of([]))  # examples that count per second, of whole runs
    spent: dict[str, float] = field(default_factory=dict)  # seconds of the average worker: compute, wait, communicate

    @property
    def complete(self) -> bool:
        """Whether every seed reached the target."""
        return self.reached == self.seeds > 0

    @property
    def waiting(self) -> float:
        """The fraction of its time that the average worker waits; NaN if the times were not recorded."""
        return self.spent["wait"] / sum(self.spent.values()) if self.spent else math.nan

    @property
    def finished(self) -> bool:
        return self.metric.size > 0


def criterion_of(runs: list[PlannedRun], by: str = "time") -> Criterion:
    """Simulated seconds on a described cluster, wall-clock seconds on processes, examples on virtual workers alone."""
    if by not in RANKINGS:
        raise UserError(f"--rank-by {by}: {did_you_mean(by, [*RANKINGS])}")
    plain = runs[0].recipe.plain()
    if len({run.recipe.plain()["until"] for run in runs}) > 1:
        raise UserError("all recipes must share one target, but they have several: give --until")
    until = Until.parse(plain["until"]) if plain["until"] is not None else None
    clock = "simulated_seconds" if plain["cluster"] is not None else "samples" if plain["virtual"] else "seconds"
    metric = until.metric if until is not None else "accuracy"
    if by == "goodput" and clock == "samples":
        raise UserError("--rank-by goodput needs a clock: describe a cluster (--cluster FILE) or use --processes")
    return Criterion(clock, until, metric, by)


def rows_of(runs: list[PlannedRun], criterion: Criterion, baseline: str = "") -> list[Row]:
    """One row per choice, best first. baseline: the name of the one that the others are compared with."""
    by_name: dict[str, list[PlannedRun]] = {}
    for run in runs:
        by_name.setdefault(run.combination.name, []).append(run)
    rows = [summarise(name, own, criterion) for name, own in by_name.items()]
    for row in rows:
        row.baseline = row.name == baseline
    return ranked(rows, criterion)


def summarise(name: str, runs: list[PlannedRun], criterion: Criterion) -> Row:
    row = Row(name, seeds=len(runs))
    failures = [run.failure for run in runs if run.state == "failed"]
    row.failure, row.failed = failures[0] if failures else "", len(failures)
    results = [run.result for run in runs if run.state == "done"]
    at_target = [r["reached"] for r in results if r.get("reached") is not None]
    row.reached = len(at_target)
    costs = at_target or results  # the cost of reaching the target or, if no seed did, of the complete runs
    row.time, row.bytes, row.rounds, row.samples = (
        Spread.of(float(cost[key]) for cost in costs) for key in (criterion.name, "bytes", "rounds", "samples")
    )
    row.metric = Spread.of(metric_of(result, criterion.metric)[1] for result in results)
    if criterion.name != "samples":
        row.spent = spent_of(results)
        row.goodput = Spread.of(goodput_of(result, criterion.name) for result in results)
    return row


def goodput_of(result: dict[str, Any], clock: str) -> float:
    """Examples that count per second. What was dropped because a worker was lost is not among the samples."""
    seconds = float(result[clock])
    return float(result["samples"]) / seconds if seconds > 0 else math.nan


def metric_of(result: dict[str, Any], metric: str) -> tuple[str, float]:
    """The better of the mean and the centre model, by `metric` or, if that was not measured, by the loss."""
    models = [result["models"][name] for name in ("mean", "centre") if name in result["models"]]
    name = metric if metric in models[0] else "loss"
    values = [float(metrics[name]) for metrics in models]
    return name, max(values) if name == "accuracy" else min(values)


def spent_of(results: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds of the average worker by activity; empty if the times were not recorded."""
    workers = [row for result in results for row in result["workers"]]
    sums = {name: sum(row.get(name) or 0.0 for row in workers) for name in SPENT}
    return {name: value / len(workers) for name, value in sums.items()} if sum(sums.values()) > 0 else {}


def ranked(rows: list[Row], criterion: Criterion) -> list[Row]:
    """Ranks: target reached with every seed, by time; with some seeds; with none, by metric; failed runs last.

    By goodput, whatever was reached, where the criterion says so.
    """
    sign = -1.0 if criterion.metric == "accuracy" else 1.0

    def key(row: Row) -> tuple[float, ...]:
        if not row.finished:
            return (3.0,)
        if criterion.by == "goodput":
            return (0.0, -row.goodput.mean)
        if row.complete:
            return (0.0, row.time.mean, row.bytes.mean)
        if row.reached:
            return (1.0, -row.reached / row.seeds, row.time.mean)
        value = row.metric.mean
        return (2.0, math.inf if math.isnan(value) else sign * value)

    order = sorted(rows, key=key)
    for place, row in enumerate(order):
        tied = place > 0 and key(row) == key(order[place - 1])
        row.rank = order[place - 1].rank if tied else place + 1
    return order


def cells(rows: list[Row], criterion: Criterion) -> tuple[list[str], list[list[str]]]:
    """The table as strings: a heading and one row per choice."""
    target = f"to {criterion.until}" if criterion.until is not None else "in total"
    head = [
        "",
        "choice",
        f"{criterion.unit} {target}",
        "bytes",
        "rounds",
        f"final {criterion.metric}",
        "reached",
        "wait",
    ]
    if criterion.name != "samples":
        head[3:3] = ["examples", "examples/s"]
    body = []
    for row in rows:
        if not row.finished:
            body.append([str(row.rank), row.name, f"failed: {row.failure}", *[""] * (len(head) - 3)])
            continue
        missed = criterion.until is not None and not row.reached
        line = [
            str(row.rank),
            row.name,
            f"not within {row.time.format()}" if missed else row.time.format(),
            row.bytes.format("bytes"),
            row.rounds.format(),
            row.metric.format(),
            f"{row.reached} of {row.seeds}" + (f", {row.failed} failed" if row.failed else ""),
            f"{row.waiting:.0%}" if row.spent else "",
        ]
        if criterion.name != "samples":
            line[3:3] = [row.samples.format(), row.goodput.format()]
        body.append(line)
    empty = [i for i in range(3, len(head)) if not any(line[i] for line in body)]
    if criterion.until is None:
        empty.append(head.index("reached"))
    kept = [i for i in range(len(head)) if i not in empty]
    return [head[i] for i in kept], [[line[i] for i in kept] for line in body]


def format_time(value: float, criterion: Criterion) -> str:
    return f"{Spread(value, math.nan, 1).format()} {criterion.unit}"


def two_digits(value: float) -> str:
    """Two significant digits, never an exponent: 12,345 is 12,000, and 0.0123 is 0.012."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    places = 1 - _exponent(value)
    return f"{round(value, places):,.{max(0, places)}f}"


def byte_unit(value: float) -> tuple[float, str]:
    for factor, unit in ((1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB")):
        if value >= factor:
            return factor, unit
    return 1.0, " B"


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
