"""The data that the script of a page draws, as JSON."""

from __future__ import annotations

import colorsys
import json
from typing import Any

from .curves import AXES, streams
from .runs import LoadedRun
from .workers import KINDS, accounts, class_counts

# Distinguishable with colour blindness, on white and on black.
COLOURS = [
    "#3b82c4",
    "#d9722e",
    "#2a9d6f",
    "#b5559c",
    "#b8961e",
    "#6b6fd6",
    "#d1495b",
    "#3f9fa0",
    "#8d6e53",
    "#7a8794",
]
_GOLDEN_ANGLE = 0.381966  # in turns of the hue circle: successive colours differ clearly
_KIND_COLOURS = ["#3b82c4", "#d9a441", "#b5559c"]
_CLASSES = 20  # more colours cannot be told apart
_DETAILED = 6  # with more runs, only the mean over workers is drawn
CAPTIONS = {
    "Training loss": "Mean over workers since the previous point; the band spans the workers' minimum and maximum.",
    "Test accuracy": "On the test data. Solid: mean of the workers' models; dashed: centre model.",
    "Test loss": "On the test data. Solid: mean of the workers' models; dashed: centre model.",
    "Consensus": "Root mean square distance of the workers' models from their mean (consensus distance).",
    "Learning rate": "As used by the optimizer.",
    "Batch size": "Examples per step over all workers. Points: gradient noise scale, if a batch rule measured it.",
    "Herding": "Largest norm of a prefix sum of centred gradients in an epoch, relative to a random order (dotted: 1).",
}


def payload(runs: list[LoadedRun]) -> dict[str, Any]:
    """Curves, times and classes of the workers, and colours."""
    plots: dict[str, list[dict[str, Any]]] = {name: [] for name in CAPTIONS}
    curves, used = [], set()
    for number, run in enumerate(runs):
        own = streams(run)
        curves.append({"name": run.name, "streams": [stream.axes for stream in own]})
        for k, stream in enumerate(own):
            used |= set(stream.axes)
            for line in stream.lines:
                name = ", ".join(word for word in (run.name if len(runs) > 1 else "", line.name) if word)
                line_info = {"run": number, "stream": k, "name": name or run.name, "style": line.style}
                plots[line.plot].append({**line_info, "y": [_short(v) for v in line.values]})
    return {
        "runs": curves,
        "axes": [{"key": key, "label": label} for key, label in AXES.items() if key in used],
        # Several runs are compared by simulated time; a single run is read step by step.
        "first": "simulated_seconds" if len(runs) > 1 and "simulated_seconds" in used else "step",
        "plots": [_plot(k, name, lines) for k, (name, lines) in enumerate(plots.items()) if lines],
        "accounts": _accounts(runs),
        "classes": _classes(runs),
        "kinds": list(KINDS),
        "colours": colours(len(runs)),
        "kindColours": _KIND_COLOURS,
        "classColours": [c + shade for shade in ("", "80") for c in COLOURS],
    }


def colours(count: int) -> list[str]:
    """One colour per run: the fixed palette first, then hues around the circle."""
    more = [colorsys.hls_to_rgb(k * _GOLDEN_ANGLE % 1.0, 0.5, 0.5) for k in range(count - len(COLOURS))]
    return COLOURS[:count] + ["#" + "".join(f"{round(255 * part):02x}" for part in rgb) for rgb in more]


def _plot(k: int, name: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    more: dict[str, Any] = {"reference": 1.0, "zero": True} if name == "Herding" else {}
    if name == "Batch size":
        more["log"] = any(line["style"] == "points" for line in lines)
    return {"id": f"plot-{k}", "title": name, "lines": lines, **more}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _accounts(runs: list[LoadedRun]) -> list[dict[str, Any]]:
    """Times of every worker for a few runs; means over workers for many."""
    times = [(run.name, accounts(run)) for run in runs]
    detailed = sum(account is not None for _, account in times) <= _DETAILED
    return [
        {"id": f"time-{k}", "name": name, "detailed": detailed, **account}
        for k, (name, account) in enumerate(times)
        if account is not None
    ]


def _classes(runs: list[LoadedRun]) -> list[dict[str, Any]]:
    """Each partition once, with the names of the runs that used it."""
    partitions: dict[str, dict[str, Any]] = {}
    for run in runs:
        counts = class_counts(run)
        if counts is None or not counts[0]:
            continue
        if len(counts[0]) > _CLASSES:
            counts = [[*row[: _CLASSES - 1], sum(row[_CLASSES - 1 :])] for row in counts]
        empty = {"id": f"classes-{len(partitions)}", "counts": counts, "runs": []}
        partitions.setdefault(json.dumps(counts), empty)["runs"].append(run.name)
    return list(partitions.values())
