"""What a comparison leaves in its folder: compare.json, compare.csv, compare.md, and the table on the terminal."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..observe.observer import plain
from .plan import Task
from .table import Criterion, Row

_NUMBERS = ("time", "bytes", "rounds", "samples", "metric")


def write_files(
    out: Path,
    rows: list[Row],
    table: tuple[list[str], list[list[str]]],
    words: str,
    tasks: list[Task],
    measure: Criterion,
) -> list[Path]:
    runs = [
        {"choice": t.combination.name, "seed": t.seed, "folder": str(t.folder), "state": t.state, "failure": t.failure}
        for t in tasks
    ]
    whole: dict[str, Any] = {
        "until": str(measure.until) if measure.until is not None else None,
        "measure": measure.name,
        "metric": measure.metric,
        "sentence": words,
        "rows": [asdict(row) | {name: getattr(row, name)._asdict() for name in _NUMBERS} for row in rows],
        "runs": runs,
    }
    texts = {
        "compare.json": json.dumps(plain(whole), indent=1) + "\n",
        "compare.csv": as_csv(rows, measure),
        "compare.md": f"{words}\n\n{as_markdown(*table)}",
    }
    for name, text in texts.items():
        try:
            (out / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {out / name}: {error.strerror}") from None
    return [out / name for name in texts]


def as_csv(rows: list[Row], measure: Criterion) -> str:
    titles = {"time": measure.name, "metric": measure.metric}
    columns = [(name, part) for name in _NUMBERS if titles.get(name) != "samples" for part in ("mean", "deviation")]
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
        # A failure is long and stands last: it must not widen the columns.
        widths = [
            max(len(line[i]) for line in [head, *body] if not line[2].startswith("failed: ") or i < 2)
            for i in range(len(head))
        ]
        for line in [head, *body]:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        sys.stdout.flush()
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for i, title in enumerate(head):
        table.add_column(Text(title), justify="left" if i == 1 else "right", overflow="fold")
    for line in body:
        table.add_row(*(Text(cell) for cell in line))
    Console().print(table)
