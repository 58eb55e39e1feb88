"""The files of a comparison (compare.json, compare.csv, compare.md) and its table on the terminal."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..core.terminal import show_table
from ..observe.observer import plain
from .plan import PlannedRun
from .table import Criterion, Row

LEAST_FIRST = ("wait", "rounds", "examples", "examples/s", "bytes", "reached")  # columns that a narrow terminal lacks
_NUMBERS = ("time", "bytes", "rounds", "samples", "metric", "goodput")


def write_files(
    out: Path,
    rows: list[Row],
    table: tuple[list[str], list[list[str]]],
    explanation: str,
    runs: list[PlannedRun],
    criterion: Criterion,
    title: str = "",
) -> list[Path]:
    content: dict[str, Any] = {
        "title": title,
        "until": str(criterion.until) if criterion.until is not None else None,
        "measure": criterion.name,
        "ranked_by": criterion.by,
        "metric": criterion.metric,
        "sentence": explanation,
        "rows": [asdict(row) | {name: getattr(row, name)._asdict() for name in _NUMBERS} for row in rows],
        "runs": [
            {
                "choice": run.combination.name,
                "seed": run.seed,
                "folder": str(run.folder),
                "state": run.state,
                "failure": run.failure,
            }
            for run in runs
        ],
    }
    texts = {
        "compare.json": json.dumps(plain(content), indent=1) + "\n",
        "compare.csv": as_csv(rows, criterion),
        "compare.md": f"{explanation}\n\n{as_markdown(*table)}",
    }
    for name, text in texts.items():
        try:
            (out / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {out / name}: {error.strerror}") from None
    return [out / name for name in texts]


def as_csv(rows: list[Row], criterion: Criterion) -> str:
    titles = {"time": criterion.name, "metric": criterion.metric}
    left_out = {"time", "goodput"} if criterion.name == "samples" else set()
    columns = [(name, part) for name in _NUMBERS if name not in left_out for part in ("mean", "deviation")]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["rank", "choice", "seeds", "reached", "failed", *(f"{titles.get(n, n)}_{p}" for n, p in columns), "failure"]
    )
    for row in rows:
        numbers = [getattr(getattr(row, name), part) for name, part in columns]
        shown = ["" if value != value else value for value in numbers]
        writer.writerow([row.rank, row.name, row.seeds, row.reached, row.failed, *shown, row.failure])
    return text.getvalue()


def as_markdown(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def show(head: list[str], body: list[list[str]]) -> None:
    """A table on a terminal, plain columns elsewhere."""
    if not sys.stdout.isatty():
        # An error message is long and stands in the last used column: it must not widen the others.
        widths = [
            max(len(line[i]) for line in [head, *body] if not line[2].startswith("failed: ") or i < 2)
            for i in range(len(head))
        ]
        for line in [head, *body]:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        sys.stdout.flush()
        return
    # An error message may take several lines.
    short = [line[:2] + [""] * (len(line) - 2) if line[2].startswith("failed: ") else line for line in body]
    show_table(head, body, LEAST_FIRST, left=1, fitted=short)
