"""The data that the script of a page draws, as JSON."""

from __future__ import annotations

import colorsys
import json
from typing import Any

from ..core.errors import UserError
from ..loop.until import Until
from .curves import AXES
from .runs import LoadedRun
from .seeds import DrawnLine, Group, drawn
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
_KIND_NAMES = {"compute": "computing", "wait": "waiting", "communicate": "sending"}
_KIND_COLOURS = ["#3b82c4", "#d9a441", "#b5559c"]
_CLASSES = 20  # more colours cannot be told apart
_DETAILED = 6  # with more choices, only the workers of the first are drawn one by one
_DECADE = 10.0  # a log scale shows nothing new below it
CAPTIONS = {
    "Test accuracy": "On the test data. Solid: mean of the workers' models. Dashed: centre model.",
    "Test loss": "On the test data. Solid: mean of the workers' models. Dashed: centre model.",
    "Training loss": "Mean over workers since the previous point.",
    "Batch size": "Examples per step over all workers. Points: gradient noise scale, if a batch rule measured it.",
    "Bytes sent": "By all workers so far.",
    "Consensus": "Root mean square distance of the workers' models from their mean (consensus distance).",
    "Learning rate": "As used by the optimizer.",
    "Herding": "Largest norm of a prefix sum of centred gradients in an epoch. A random order has 1 (dotted).",
}


def payload(groups: list[Group]) -> dict[str, Any]:
    """Curves, times and classes of the workers, and colours; a *choice* is a group of runs that differ in the seed."""
    plots: dict[str, list[dict[str, Any]]] = {name: [] for name in CAPTIONS}
    used: set[str] = set()
    choices = []
    for number, group in enumerate(groups):
        positions: list[dict[str, list[float]]] = []
        for line in drawn(group):
            used |= set(line.x)
            if not positions or positions[-1] != line.x:
                positions.append(line.x)
            plots[line.plot].append(
                {
                    "choice": number,
                    "stream": len(positions) - 1,
                    "name": ", ".join(filter(None, (group.name if len(groups) > 1 else "", line.name))) or group.name,
                    "style": line.style,
                    **_values(line),
                }
            )
        choices.append({"name": group.name, "seeds": len(group.runs), "streams": positions})
    until = target([run for group in groups for run in group.runs])
    order = sorted(plots, key=lambda name: until is None or name != f"Test {until.metric}")
    return {
        "choices": choices,
        "axes": [{"key": key, "label": label} for key, label in AXES.items() if key in used],
        # Several choices are compared by simulated time; a single run is read step by step.
        "first": "simulated_seconds" if len(groups) > 1 and "simulated_seconds" in used else "step",
        "plots": [_plot(k, name, plots[name], until) for k, name in enumerate(order) if plots[name]],
        "accounts": _accounts(groups),
        "classes": _classes(groups),
        "kinds": [_KIND_NAMES[kind] for kind in KINDS],
        "colours": colours(len(groups)),
        "kindColours": _KIND_COLOURS,
        "classColours": [c + shade for shade in ("", "80") for c in COLOURS],
    }


def target(runs: list[LoadedRun]) -> Until | None:
    """The target that all runs share."""
    wanted = {str(run.recipe.get("until")) for run in runs}
    try:
        return Until.parse(wanted.pop()) if len(wanted) == 1 else None
    except UserError:
        return None


def _values(line: DrawnLine) -> dict[str, Any]:
    """The values once if they are the same on every axis, as those of a single run are."""
    own = list(line.y.values())
    if all(values is own[0] for values in own):
        return {"y": [_short(v) for v in own[0]]}
    return {"y": {axis: [_short(v) for v in values] for axis, values in line.y.items()}}


def colours(count: int) -> list[str]:
    """One colour per run: the fixed palette first, then hues around the circle."""
    more = [colorsys.hls_to_rgb(k * _GOLDEN_ANGLE % 1.0, 0.5, 0.5) for k in range(count - len(COLOURS))]
    return COLOURS[:count] + ["#" + "".join(f"{round(255 * part):02x}" for part in rgb) for rgb in more]


def _plot(k: int, name: str, lines: list[dict[str, Any]], until: Until | None) -> dict[str, Any]:
    values = [v for line in lines for v in _flat(line["y"]) if v is not None]
    low, high = min(values, default=0.0), max(values, default=0.0)
    more: dict[str, Any] = {"reference": 1.0} if name == "Herding" else {}
    more["zero"] = name in ("Herding", "Batch size", "Bytes sent")
    if until is not None and name == f"Test {until.metric}":
        more |= {"reference": until.target, "label": f"target {until.target:g}"}
    if high - low <= 1e-6 * max(abs(low), abs(high)):  # a constant would be drawn on an axis around it
        more["range"] = [min(0.0, 1.25 * low), max(0.0, 1.25 * high)] if high or low else [-1.0, 1.0]
    elif low > 0 and high >= _DECADE * low and name != "Test accuracy":
        more["log"] = name == "Batch size" and any(line["style"] == "points" for line in lines)
    return {"id": f"plot-{k}", "title": name, "lines": lines, "words": _in_words(name, lines), **more}


def _flat(y: Any) -> list[float | None]:
    return [v for values in y.values() for v in values] if isinstance(y, dict) else y


def _in_words(name: str, lines: list[dict[str, Any]]) -> str:
    """What the plot shows, for who cannot see it."""
    ends = []
    for line in lines:
        values = [v for v in _flat(line["y"]) if v is not None]
        if values and line["style"] in ("solid", "dash"):
            ends.append(f"{line['name']} ends at {values[-1]:.3g}")
    return f"{name}: " + "; ".join(ends)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _accounts(groups: list[Group]) -> list[dict[str, Any]]:
    """Mean times over workers and seeds for every choice; every worker of the first seed for a few choices."""
    found = []
    for number, group in enumerate(groups):
        times = [(run.name, account) for run in group.runs if (account := accounts(run)) is not None]
        if times:
            rows = [row for _, account in times for row in account["totals"]]
            mean = [_short(sum(row[k] for row in rows) / len(rows)) for k in range(len(KINDS))]
            found.append({"choice": number, "name": group.name, "run": times[0][0], "mean": mean, **times[0][1]})
    few = len(found) <= _DETAILED
    return [{"id": f"time-{k}", "detailed": few or k == 0, **about} for k, about in enumerate(found)]


def _classes(groups: list[Group]) -> list[dict[str, Any]]:
    """Each partition once, with the names of what used it."""
    partitions: dict[str, dict[str, Any]] = {}
    for group in groups:
        for run in group.runs:
            counts = class_counts(run)
            if counts is None or not counts[0]:
                continue
            if len(counts[0]) > _CLASSES:
                counts = [[*row[: _CLASSES - 1], sum(row[_CLASSES - 1 :])] for row in counts]
            empty = {"id": f"classes-{len(partitions)}", "counts": counts, "runs": []}
            partitions.setdefault(json.dumps(counts), empty)["runs"].append(run.name)
    for about in partitions.values():
        about["runs"] = _briefly(about["runs"], groups)
    return list(partitions.values())


def _briefly(names: list[str], groups: list[Group]) -> list[str]:
    """Names of runs: a choice for all its seeds, and one word for all choices, or for one seed of all of them."""
    whole = [group.name for group in groups if all(run.name in names for run in group.runs)]
    if len(whole) == len(groups) > 1:
        return ["All choices"]
    single = [(g.name, run.name) for g in groups for run in g.runs if run.name in names and g.name not in whole]
    seeds = {run.removeprefix(f"{choice}, ") for choice, run in single}
    if len(single) == len(groups) > 1 and len(seeds) == 1:
        return [f"All choices, {seeds.pop()}"]
    return whole + [run for _, run in single]
