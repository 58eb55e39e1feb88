"""Curves from events: values against every axis that a run can be looked at along.

A *stream* is a kind of event with its places on all axes; a *line* is a value along a stream. Samples and bytes are those of all
workers together, although an event knows only its own worker's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .runs import LoadedRun

AXES = {
    "step": "steps",
    "samples": "samples",
    "rounds": "rounds",
    "bytes": "bytes",
    "seconds": "seconds",
    "simulated_seconds": "simulated seconds",
}
POINTS = 1000  # in a curve; a screen shows no more
_TOTALS = ("samples", "bytes")  # of all workers


@dataclass
class Line:
    """`plot` is the title of the picture it belongs to; `name` what distinguishes it from others of its run there."""

    plot: str
    name: str
    values: list[float | None]
    style: str = "solid"


@dataclass
class Series:
    axes: dict[str, list[float]]
    lines: list[Line] = field(default_factory=list)


def streams(run: LoadedRun) -> list[Series]:
    """Everything that can be drawn of a run, each stream with at most `POINTS` places."""
    training = _training(run.events)
    totals = _Totals(training)
    found = [_steps(training), _evaluations(run.events, totals), _batches(run.events, totals)]
    return [_thin(s) for s in found if s.lines and s.axes["step"]]


def number(value: Any) -> float | None:
    """A finite number, or None: events write NaN as text."""
    fine = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if fine else None


def _training(events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Points at which all workers logged, each with one event per worker.

    Workers log at the same points, if not always at the same step: the k-th of one belongs to the k-th of the others.
    """
    own: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["event"] == "step":
            own.setdefault(event["worker"], []).append(event)
    if not own:
        return []
    length = min(map(len, own.values()))  # a run that died may lack the last point of some
    return [[rows[k] for rows in own.values()] for k in range(length)]


class _Totals:
    """Places of an event of worker 0 on all axes: its own counters, brought up to those of all workers."""

    def __init__(self, training: list[list[dict[str, Any]]]):
        self.steps = [float(point[0]["step"]) for point in training]
        self.ratio: dict[str, list[float]] = {
            axis: [_ratio([_place(e, axis) for e in point]) for point in training] for axis in _TOTALS
        }

    def places(self, events: list[dict[str, Any]]) -> dict[str, list[float]]:
        axes = {axis: [_place(e, axis) for e in events] for axis in AXES if _has(events, axis)}
        for axis in _TOTALS:
            if self.steps and axis in axes:
                times = np.interp([e["step"] for e in events], self.steps, self.ratio[axis])
                axes[axis] = [round(a * float(b)) for a, b in zip(axes[axis], times, strict=True)]
        return axes


def _ratio(values: list[float]) -> float:
    return sum(values) / values[0] if values[0] else 1.0


def _place(event: dict[str, Any], axis: str) -> float:
    return number(event.get(axis)) or 0.0


def _has(events: list[dict[str, Any]], axis: str) -> bool:
    return any(number(e.get(axis)) is not None for e in events)


def _steps(training: list[list[dict[str, Any]]]) -> Series:
    events = [e for point in training for e in point]
    axes = {}
    for axis in AXES:
        if _has(events, axis):
            join = sum if axis in _TOTALS else max
            axes[axis] = [float(join(_place(e, axis) for e in point)) for point in training]
    losses = [_known(number(e.get("loss")) for e in point) for point in training]
    lines = [Line("Training loss", "", [sum(row) / len(row) if row else None for row in losses])]
    if any(len(row) > 1 for row in losses):
        lines.append(Line("Training loss", "least of workers", [min(row, default=None) for row in losses], "low"))
        lines.append(Line("Training loss", "most of workers", [max(row, default=None) for row in losses], "high"))
    lines.append(Line("Learning rate", "", [number(point[0].get("lr")) for point in training]))
    sizes = [_known(number(e.get("batch")) for e in point) for point in training]
    lines.append(Line("Batch size", "all workers", [sum(row) if row else None for row in sizes]))
    return Series(axes or {"step": []}, [line for line in lines if any(v is not None for v in line.values)])


def _known(values: Any) -> list[float]:
    return [v for v in values if v is not None]


_STYLES = {"mean": "solid", "centre": "dash", "local": "dot"}


def _evaluations(events: list[dict[str, Any]], totals: _Totals) -> Series:
    seen = {e["step"]: e for e in events if e["event"] == "evaluate" and isinstance(e.get("models"), dict)}
    rows = list(seen.values())  # the last one at a step is the most complete
    lines = []
    for name, style in _STYLES.items():
        for metric in ("accuracy", "loss"):
            values = [number(_inside(row["models"], name, metric)) for row in rows]
            if sum(v is not None for v in values) > (name == "local"):  # local models are looked at once, at the end
                lines.append(Line(f"Test {metric}", f"{name} model", values, style))
    for title, key in (("Consensus", "consensus"), ("Herding", "herding")):
        values = [number(_inside(row, "health", key)) for row in rows]
        if any(v for v in values):
            lines.append(Line(title, "", values))
    return Series(totals.places(rows) if rows else {"step": []}, lines)


def _inside(table: Any, *keys: str) -> Any:
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table


def _batches(events: list[dict[str, Any]], totals: _Totals) -> Series:
    """Noise scale as a batch rule measured it; the sizes themselves are in the step events."""
    rows = [e for e in events if e["event"] == "batch"]
    values = [number(e.get("noise_scale")) for e in rows]
    lines = [Line("Batch size", "noise scale", values, "points")] if any(v is not None for v in values) else []
    return Series(totals.places(rows) if rows else {"step": []}, lines)


def _thin(stream: Series) -> Series:
    """Evenly chosen places, first and last among them."""
    count = len(stream.axes["step"])
    if count <= POINTS:
        return stream
    kept = np.linspace(0, count - 1, POINTS).round().astype(int)
    return Series(
        {axis: [places[i] for i in kept] for axis, places in stream.axes.items()},
        [Line(line.plot, line.name, [line.values[i] for i in kept], line.style) for line in stream.lines],
    )
