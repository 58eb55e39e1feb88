"""Curves from events: values against steps, examples, rounds, bytes or seconds.

A *series* holds the positions of one kind of event on all x-axes; a *line* holds one value per position. Samples and
bytes are totals over all workers, although an event counts only those of its own worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .runs import LoadedRun

AXES = {
    "step": "steps",
    "samples": "examples",
    "rounds": "rounds",
    "bytes": "bytes",
    "seconds": "seconds",
    "simulated_seconds": "simulated seconds",
}
POINTS = 1000  # per curve; a screen shows no more
_TOTALS = ("samples", "bytes")  # summed over workers


@dataclass
class Line:
    """`plot` is the title of its plot; `name` distinguishes it from the other lines of its run in that plot."""

    plot: str
    name: str
    values: list[float | None]
    style: str = "solid"


@dataclass
class Series:
    axes: dict[str, list[float]]
    lines: list[Line] = field(default_factory=list)


def streams(run: LoadedRun) -> list[Series]:
    """All curves of a run, each with at most `POINTS` points."""
    logged = _logged_steps(run.events)
    totals = _Totals(logged)
    series = [_training(logged), _evaluations(run.events, totals), _noise_scale(run.events, totals)]
    return [_thin(s) for s in series if s.lines and s.axes["step"]]


def number(value: Any) -> float | None:
    """A finite number, or None: events store NaN and infinity as strings."""
    finite = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if finite else None


def _logged_steps(events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The points at which all workers logged a step, each with one event per worker.

    Workers log equally often but not always at the same step: the k-th event of one matches the k-th of the others.
    """
    own: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["event"] == "step":
            own.setdefault(event["worker"], []).append(event)
    if not own:
        return []
    length = min(map(len, own.values()))  # after a crash some workers may lack the last point
    return [[rows[k] for rows in own.values()] for k in range(length)]


class _Totals:
    """Positions of events of worker 0 on all axes, with its own counts scaled to the totals of all workers."""

    def __init__(self, logged: list[list[dict[str, Any]]]):
        self.steps = [float(point[0]["step"]) for point in logged]
        self.ratio: dict[str, list[float]] = {
            axis: [_ratio([_position(e, axis) for e in point]) for point in logged] for axis in _TOTALS
        }

    def positions(self, events: list[dict[str, Any]]) -> dict[str, list[float]]:
        axes = {axis: [_position(e, axis) for e in events] for axis in AXES if _has(events, axis)}
        for axis in _TOTALS:
            if self.steps and axis in axes:
                ratios = np.interp([e["step"] for e in events], self.steps, self.ratio[axis])
                axes[axis] = [round(a * float(b)) for a, b in zip(axes[axis], ratios, strict=True)]
        return axes


def _ratio(values: list[float]) -> float:
    return sum(values) / values[0] if values[0] else 1.0


def _position(event: dict[str, Any], axis: str) -> float:
    return number(event.get(axis)) or 0.0


def _has(events: list[dict[str, Any]], axis: str) -> bool:
    return any(number(e.get(axis)) is not None for e in events)


def _training(logged: list[list[dict[str, Any]]]) -> Series:
    events = [e for point in logged for e in point]
    axes = {}
    for axis in AXES:
        if _has(events, axis):
            join = sum if axis in _TOTALS else max
            axes[axis] = [float(join(_position(e, axis) for e in point)) for point in logged]
    losses = [_known(number(e.get("loss")) for e in point) for point in logged]
    lines = [Line("Training loss", "", [sum(row) / len(row) if row else None for row in losses])]
    if any(len(row) > 1 for row in losses):
        lines.append(Line("Training loss", "minimum over workers", [min(row, default=None) for row in losses], "low"))
        lines.append(Line("Training loss", "maximum over workers", [max(row, default=None) for row in losses], "high"))
    lines.append(Line("Learning rate", "", [number(point[0].get("lr")) for point in logged]))
    sizes = [_known(number(e.get("batch")) for e in point) for point in logged]
    lines.append(Line("Batch size", "all workers", [sum(row) if row else None for row in sizes]))
    if any(axes.get("bytes", [])):
        lines.append(Line("Bytes sent", "", [*axes["bytes"]]))
    return Series(axes or {"step": []}, [line for line in lines if any(v is not None for v in line.values)])


def _known(values: Any) -> list[float]:
    return [v for v in values if v is not None]


_STYLES = {"mean": "solid", "centre": "dash", "local": "dot"}


def _evaluations(events: list[dict[str, Any]], totals: _Totals) -> Series:
    by_step = {e["step"]: e for e in events if e["event"] == "evaluate" and isinstance(e.get("models"), dict)}
    rows = list(by_step.values())  # the last evaluation at a step is the most complete
    lines = []
    for name, style in _STYLES.items():
        for metric in ("accuracy", "loss"):
            values = [number(_nested(row["models"], name, metric)) for row in rows]
            if sum(v is not None for v in values) > (name == "local"):  # local models are evaluated once, at the end
                lines.append(Line(f"Test {metric}", f"{name} model", values, style))
    for title, key in (("Consensus", "consensus"), ("Herding", "herding")):
        values = [number(_nested(row, "health", key)) for row in rows]
        if any(v for v in values):
            lines.append(Line(title, "", values))
    return Series(totals.positions(rows) if rows else {"step": []}, lines)


def _nested(table: Any, *keys: str) -> Any:
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table


def _noise_scale(events: list[dict[str, Any]], totals: _Totals) -> Series:
    """The gradient noise scale as measured by a batch rule. The batch sizes themselves are in the step events."""
    rows = [e for e in events if e["event"] == "batch"]
    values = [number(e.get("noise_scale")) for e in rows]
    lines = [Line("Batch size", "noise scale", values, "points")] if any(v is not None for v in values) else []
    return Series(totals.positions(rows) if rows else {"step": []}, lines)


def _thin(series: Series) -> Series:
    """At most `POINTS` evenly spaced points, including the first and the last."""
    count = len(series.axes["step"])
    if count <= POINTS:
        return series
    kept = np.linspace(0, count - 1, POINTS).round().astype(int)
    return Series(
        {axis: [positions[i] for i in kept] for axis, positions in series.axes.items()},
        [Line(line.plot, line.name, [line.values[i] for i in kept], line.style) for line in series.lines],
    )
