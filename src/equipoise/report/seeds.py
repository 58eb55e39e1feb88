"""Runs of one choice with several seeds: which belong together, and their curves as a mean and a band."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .curves import AXES, Series, streams
from .runs import LoadedRun

POINTS = 200  # of a mean over seeds


@dataclass
class Group:
    """The runs of one choice, one for each seed. A run that stands alone is a group too."""

    name: str
    runs: list[LoadedRun]


@dataclass
class DrawnLine:
    """A line of a group: its positions and values, both by axis."""

    plot: str
    name: str
    style: str
    x: dict[str, list[float]]
    y: dict[str, list[float | None]]


def grouped(runs: list[LoadedRun], choices: Sequence[str] = ()) -> list[Group]:
    """Groups by the name of each run's choice; without names, folders X/seed-N are runs of X."""
    if choices:
        names = list(choices)
    elif len(runs) == 1:
        names = [runs[0].name]
    else:
        names = [_above(run) if re.fullmatch(r"seed-\d+", run.folder.resolve().name) else run.name for run in runs]
    groups: dict[str, Group] = {}
    for name, run in zip(names, runs, strict=True):
        groups.setdefault(name, Group(name, [])).runs.append(run)
    for group in groups.values():
        many = len(group.runs) > 1
        group.runs = [
            dataclasses.replace(run, name=f"{group.name}, {_seed(run)}" if many else group.name) for run in group.runs
        ]
    return list(groups.values())


def _above(run: LoadedRun) -> str:
    return os.path.dirname(run.name) or run.folder.resolve().parent.name


def _seed(run: LoadedRun) -> str:
    return f"seed {run.recipe['seed']}" if "seed" in run.recipe else run.folder.resolve().name.replace("-", " ")


def drawn(group: Group) -> list[DrawnLine]:
    """All lines of a group: of its run as they are, or of several seeds as a mean between the least and the most."""
    every = [streams(run) for run in group.runs]
    if len(every) == 1:
        return [
            DrawnLine(line.plot, line.name, line.style, series.axes, dict.fromkeys(series.axes, line.values))
            for series in every[0]
            for line in series.lines
        ]
    return [line for key in _keys(every) for line in _over_seeds(key, every)]


def _keys(every: list[list[Series]]) -> list[tuple[str, str, str]]:
    """What is drawn of several seeds. The range over workers is not: the band is the range over seeds."""
    keys = ((line.plot, line.name, line.style) for seed in every for series in seed for line in series.lines)
    return list(dict.fromkeys(key for key in keys if key[2] not in ("low", "high")))


def _over_seeds(key: tuple[str, str, str], every: list[list[Series]]) -> list[DrawnLine]:
    plot, name, style = key
    own = [
        (series.axes, line.values)
        for seed in every
        for series in seed
        for line in series.lines
        if (line.plot, line.name, line.style) == key and any(v is not None for v in line.values)
    ]
    x: dict[str, list[float]] = {}
    parts: list[dict[str, list[float | None]]] = [{}, {}, {}]
    for axis in AXES:
        if not own or any(axis not in axes for axes, _ in own):
            continue
        curves = [_known(axes[axis], values) for axes, values in own]
        if style == "points":
            x[axis] = [float(a) for positions, _ in curves for a in positions]
            parts[0][axis] = [float(b) for _, values in curves for b in values]
            continue
        grid, rows = on_one_grid(curves)
        x[axis] = grid.tolist()
        for part, values in zip(parts, (rows.mean(0), rows.min(0), rows.max(0)), strict=True):
            part[axis] = values.tolist()
    lines = [DrawnLine(plot, name, style, x, parts[0])]
    if style != "points" and len(own) > 1:
        lines.append(DrawnLine(plot, "least of the seeds", "low", x, parts[1]))
        lines.append(DrawnLine(plot, "most of the seeds", "high", x, parts[2]))
    return lines


def _known(positions: list[float], values: list[float | None]) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(a, b) for a, b in zip(positions, values, strict=True) if b is not None]
    return np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])


def on_one_grid(curves: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Common positions, from where all curves have begun, and a row of values for each curve.

    A curve is linear between its points and keeps its last value: a run that has reached its target stays there.
    """
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    grid = grid[grid >= max(x[0] for x, _ in curves)]
    if len(grid) > POINTS:
        grid = grid[np.linspace(0, len(grid) - 1, POINTS).round().astype(int)]
    return grid, np.stack([np.interp(grid, x, y) for x, y in curves])
