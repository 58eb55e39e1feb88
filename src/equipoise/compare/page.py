"""The page of a comparison: the verdict, what to run, the times of the choices, and their curves."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..core.json import parse_json
from ..loop.until import Until
from ..report.front import Bar, Bars
from .plan import PlannedRun
from .table import Criterion, Row, Spread, cells, two_digits

RECIPE = "recipe.toml"
_SIMULATED = ("cluster", "virtual", "out", "keep")  # settings of a comparison, not of the run that it is about


def write_comparison_page(
    out: Path,
    rows: list[Row],
    criterion: Criterion,
    sentence: str,
    done: list[tuple[str, Path]],
    *,
    title: str = "",
    path: Path | None = None,
) -> list[Path]:
    """Write OUT/report.html; `done` are the finished runs, each with the name of its choice."""
    from ..report.page import write_page

    order = [row.name for row in rows]
    done = sorted(done, key=lambda run: order.index(run[0]))
    recipe = out / RECIPE
    return write_page(
        [folder for _, folder in done],
        path or out / "report.html",
        title=title or _title(out) or out.resolve().name,
        sentence=sentence,
        table=cells(rows, criterion),
        choices=[name for name, _ in done],
        times=bars_of(rows, criterion),
        command=f"equipoise train {shlex.quote(str(recipe))}" if recipe.is_file() else "",
    )


def bars_of(rows: list[Row], criterion: Criterion) -> Bars | None:
    """What the choices are ranked by: the time to the target, or else the metric or the goodput."""
    until, finished = criterion.until, [row for row in rows if row.finished]
    if len(rows) < 2 or not finished:
        return None
    by_time = until is not None and criterion.by != "goodput"
    if criterion.by == "goodput":
        title, values = "Goodput, examples per second", [row.goodput for row in rows]
    elif until is not None:
        what = "Examples" if criterion.name == "samples" else "Time"
        unit = "" if criterion.name == "samples" else f", {criterion.name.replace('_', ' ')}"
        title, values = f"{what} to {until.metric} {until.target:g}{unit}", [row.time for row in rows]
    else:
        title, values = f"Final {criterion.metric}", [row.metric for row in rows]
    seeds = max(row.seeds for row in rows)
    caption = f"Mean over {seeds} seeds; the line is one standard deviation." if seeds > 1 else "One seed."
    if by_time and any(not row.complete for row in finished):
        caption += " Striped: target not reached with every seed."
    base = next((row for row in rows if row.baseline and row.complete), None) if by_time else None
    if base is not None and criterion.name != "samples":
        caption += f" ×: times as fast as {base.name}."
        factors = [f"{two_digits(base.time.mean / row.time.mean)}×" if row.complete else "" for row in rows]
    else:
        factors = [""] * len(rows)
    about = zip(rows, values, factors, strict=True)
    return Bars(title, caption, [replace(_bar(row, value, by_time), factor=factor) for row, value, factor in about])


def _bar(row: Row, value: Spread, by_time: bool) -> Bar:
    if not row.finished:
        return Bar(row.name, 0.0, 0.0, "failed", missed=True)
    missed = by_time and not row.reached
    text = f"{'not within ' if missed else ''}{value.format()}"
    if by_time and 0 < row.reached < row.seeds:
        text += f", {row.reached} of {row.seeds} seeds"
    numbers = [x if math.isfinite(x) else 0.0 for x in (value.mean, value.deviation)]
    return Bar(row.name, numbers[0], numbers[1], text, missed=by_time and not row.complete)


def write_recipe(out: Path, rows: list[Row], criterion: Criterion, runs: list[PlannedRun]) -> list[Path]:
    """OUT/recipe.toml: the recipe of the first choice for workers that exist; none if no choice reached the target."""
    path, first = out / RECIPE, rows[0]
    path.unlink(missing_ok=True)
    if not first.finished or (criterion.until is not None and not first.complete):
        return []
    recipe = next(run.recipe for run in runs if run.combination.name == first.name)
    try:
        recipe.without(*_SIMULATED).merged({"workers": recipe.plain()["workers"]}).dump(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return [path]


def read_comparison(out: Path) -> tuple[list[Row], Criterion, str, list[tuple[str, Path]]] | None:
    """Rows, criterion, verdict and finished runs, the winner's first, from OUT/compare.json; None where it is not."""
    try:
        content = parse_json((out / "compare.json").read_text(encoding="utf-8"))
        rows = [Row(**{name: _spread(value) for name, value in row.items()}) for row in content["rows"]]
        until = Until.parse(content["until"]) if content["until"] is not None else None
        criterion = Criterion(content["measure"], until, content["metric"], content["ranked_by"])
        # The comparison may have been moved: only the last two parts of a folder are its own.
        runs = [
            (run["choice"], out.joinpath(*Path(run["folder"]).parts[-2:]))
            for row in rows
            for run in content["runs"]
            if run["state"] == "done" and run["choice"] == row.name
        ]
        return rows, criterion, content["sentence"], [run for run in runs if run[1].is_dir()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _title(out: Path) -> str:
    """What the comparison was called when it was made."""
    try:
        return str(parse_json((out / "compare.json").read_text(encoding="utf-8")).get("title") or "")
    except (OSError, ValueError, AttributeError):
        return ""


def _spread(value: Any) -> Any:
    if isinstance(value, dict) and "deviation" in value:
        return Spread(float(value["mean"]), float(value["deviation"]), value["size"])
    return value
