"""What the script of a page draws, as plain data."""

from __future__ import annotations

import colorsys
import json
from typing import Any

from .curves import AXES, streams
from .runs import LoadedRun
from .workers import KINDS, accounts, class_counts

# Told apart by colour-blind eyes, and readable on white and on black.
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
_TURN = 0.381966  # of the circle of colours: the golden angle, so that neighbours differ
_KIND_COLOURS = ["#3b82c4", "#d9a441", "#b5559c"]
_CLASSES = 20  # more colours than these nobody can tell apart
_DETAILED = 6  # runs of which every worker's time is drawn
WORDS = {
    "Training loss": "Mean over workers since the last point; the band is from least to most.",
    "Test accuracy": "On the test data: solid for the mean of the workers' models, dashed for the centre.",
    "Test loss": "On the test data: solid for the mean of the workers' models, dashed for the centre.",
    "Consensus": "Root mean square distance of the workers' models from their mean.",
    "Learning rate": "As the optimizer used it.",
    "Batch size": "Examples per step of all workers; points: the gradient noise scale, where a rule measured it.",
    "Herding": "Largest prefix of centred gradients of an epoch, as a part of a random order's (dotted: 1).",
}


def payload(runs: list[LoadedRun]) -> dict[str, Any]:
    """Curves along their streams, times and classes of workers, and the colours for them."""
    plots: dict[str, list[dict[str, Any]]] = {name: [] for name in WORDS}
    places, used = [], set()
    for number, run in enumerate(runs):
        found = streams(run)
        places.append({"name": run.name, "streams": [stream.axes for stream in found]})
        for k, stream in enumerate(found):
            used |= set(stream.axes)
            for line in stream.lines:
                name = ", ".join(word for word in (run.name if len(runs) > 1 else "", line.name) if word)
                about = {"run": number, "stream": k, "name": name or run.name, "style": line.style}
                plots[line.plot].append({**about, "y": [_short(v) for v in line.values]})
    return {
        "runs": places,
        "axes": [{"key": key, "label": label} for key, label in AXES.items() if key in used],
        # Runs are compared by the time of their cluster; one run is read step by step.
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
    """One colour for each run: the chosen ones, then others around the circle."""
    more = [colorsys.hls_to_rgb(k * _TURN % 1.0, 0.5, 0.5) for k in range(count - len(COLOURS))]
    return COLOURS[:count] + ["#" + "".join(f"{round(255 * part):02x}" for part in rgb) for rgb in more]


def _plot(k: int, name: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    more: dict[str, Any] = {"reference": 1.0, "zero": True} if name == "Herding" else {}
    if name == "Batch size":
        more["log"] = any(line["style"] == "points" for line in lines)
    return {"id": f"plot-{k}", "title": name, "lines": lines, **more}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _accounts(runs: list[LoadedRun]) -> list[dict[str, Any]]:
    """Worker by worker for a few runs; of many only their means."""
    found = [(run.name, accounts(run)) for run in runs]
    detailed = sum(about is not None for _, about in found) <= _DETAILED
    return [
        {"id": f"time-{k}", "name": name, "detailed": detailed, **about}
        for k, (name, about) in enumerate(found)
        if about is not None
    ]


def _classes(runs: list[LoadedRun]) -> list[dict[str, Any]]:
    """Each partition once, with the names of the runs that had it."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        counts = class_counts(run)
        if counts is None or not counts[0]:
            continue
        if len(counts[0]) > _CLASSES:
            counts = [[*row[: _CLASSES - 1], sum(row[_CLASSES - 1 :])] for row in counts]
        about = found.setdefault(json.dumps(counts), {"id": f"classes-{len(found)}", "counts": counts, "runs": []})
        about["runs"].append(run.name)
    return list(found.values())
