"""Runs in formats other than HTML: tables as Markdown, curves as CSV, everything as JSON."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from .curves import AXES, streams
from .runs import LoadedRun
from .tables import final_results, recipes


def export(runs: list[LoadedRun], kind: str) -> str:
    """The runs as a string in the format `md`, `csv` or `json`."""
    return {"md": markdown, "csv": spreadsheet, "json": everything}[kind](runs)


def markdown(runs: list[LoadedRun]) -> str:
    """Notes, final results, and the differences between the recipes."""
    parts = []
    notes = [f"- {run.name}: {note}" for run in runs for note in run.notes]
    if notes:
        parts.append("\n".join(notes))
    if results := final_results(runs):
        parts.append("## Final results\n" + pipes(results))
    different, same = recipes(runs)
    if different:
        parts.append("## Differences between the recipes\n" + pipes(different))
    if same:
        parts.append("## Common to all recipes\n" + pipes([["", "value"], *same]))
    return "\n\n".join(parts) + "\n"


def pipes(rows: list[list[str]]) -> str:
    """A Markdown table; the first row is the heading."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [cells[0], ["---"] * len(cells[0]), *cells[1:]])


def spreadsheet(runs: list[LoadedRun]) -> str:
    """One row for every point of every curve."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["run", "curve", "line", *AXES, "value"])
    for run in runs:
        for stream in streams(run):
            for line in stream.lines:
                for i, value in enumerate(line.values):
                    if value is not None:
                        positions = [stream.axes[axis][i] if axis in stream.axes else "" for axis in AXES]
                        out.writerow([run.name, line.plot, line.name, *positions, value])
    return text.getvalue()


def everything(runs: list[LoadedRun]) -> str:
    return json.dumps({"runs": [_record(run) for run in runs]}, indent=1) + "\n"


def _record(run: LoadedRun) -> dict[str, Any]:
    curves = [
        {"curve": line.plot, "line": line.name, **stream.axes, "value": line.values}
        for stream in streams(run)
        for line in stream.lines
    ]
    return {
        "name": run.name,
        "folder": str(run.folder),
        "notes": run.notes,
        "recipe": run.recipe,
        "result": run.result,
        "curves": curves,
    }
