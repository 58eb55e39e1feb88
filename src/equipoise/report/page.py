"""A static page about one or several runs; works offline, on phones and in dark mode."""

from __future__ import annotations

import html
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from ..core.errors import UserError
from . import plots
from .front import Bars, Table, bars, verdict
from .html import document, folded, section, table
from .payload import colours, payload
from .runs import LoadedRun, load_runs, print_notes
from .sections import citations, cluster, topologies
from .seeds import Group, grouped
from .tables import final_results, recipes, worker_rows
from .timeline import who_was_there

NO_PLOTLY = "no curves: they need plotly; pip install 'equipoise[pages]', then write the page again"


def write_page(
    runs: Sequence[Path],
    out: Path | None = None,
    *,
    title: str = "",
    sentence: str = "",
    table: Table | None = None,
    choices: Sequence[str] = (),
    times: Bars | None = None,
    command: str = "",
) -> list[Path]:
    """Write the page about `runs` and return the files written.

    out: the file; by default RUN/report.html for a single run and report.html for several.
    title, sentence, command, times, table: shown first, in this order; `command` is what to run, `times` a bar for each
        choice, `table` a heading and rows.
    choices: the name of the choice of each run. Runs of one choice differ in their seed, and share one line. Without
        names, runs in folders X/seed-N do.
    """
    loaded = load_runs([Path(run) for run in runs])
    path = out if out is not None else (loaded[0].folder / "report.html" if len(loaded) == 1 else Path("report.html"))
    text = page(loaded, title=title, sentence=sentence, front=table, choices=choices, times=times, command=command)
    print_notes(loaded)
    if library() is None:
        print(f"note: {NO_PLOTLY}", file=sys.stderr)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another file with --out") from None
    return [path]


def library() -> Path | None:
    """The plotly script that the Python package contains. Found without importing the package, which is slow."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return path if path.is_file() else None


def page(
    loaded: list[LoadedRun],
    *,
    title: str = "",
    sentence: str = "",
    front: Table | None = None,
    choices: Sequence[str] = (),
    times: Bars | None = None,
    command: str = "",
) -> str:
    groups = grouped(loaded, choices)
    runs = [run for group in groups for run in group.runs]
    several = len(groups) > 1
    graphs = topologies(groups)  # first, because it may add notes to the runs
    title = title or (f"Comparison of {len(groups)} runs" if several else groups[0].name)
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        *verdict(sentence, command, times.rows[0].name if times is not None else "it"),
    ]
    if times is not None:
        parts += bars(times, {group.name: colour for group, colour in zip(groups, colours(len(groups)), strict=True)})
    if front is not None:
        parts.append(_front(front, groups, fold=times is not None))
    for run in runs:
        owner = f"{run.name}: " if len(runs) > 1 else ""
        parts += [f'<p class="note">{html.escape(owner + note)}</p>' for note in run.notes]
    data = payload(groups)
    script = library()
    drawn = script is not None and bool(data["plots"])
    if script is None:
        parts.append(f'<p class="note">{html.escape(NO_PLOTLY)}</p>')
    elif drawn:
        parts += [*plots.curves(data, groups), *plots.workers(data)]
    parts += [*cluster(runs), *section(who_was_there(runs), fold=several)]
    if drawn:
        parts += section(plots.classes(data), fold=several)
    for about in (_final_results(groups), graphs, _recipes(groups), citations(runs)):
        parts += section(about, fold=several)
    if script is not None and drawn:
        parts += plots.scripts(script, data)
    return document(title, parts)


def _front(front: Table, groups: list[Group], *, fold: bool) -> str:
    """The table of the choices; folded where bars show the same."""
    heading, rows = front
    names = [group.name for group in groups]
    column = heading.index("choice") if "choice" in heading else 0
    own = [names.index(row[column]) if row[column] in names else None for row in rows]
    text = table([heading, *rows], first=True, rows_of=own)
    return folded("All numbers", text) if fold else text


def _final_results(groups: list[Group]) -> list[str]:
    runs = [run for group in groups for run in group.runs]
    rows = final_results(runs)
    if not rows:
        return []
    if len(rows) == 2:  # a single run is easier to read as a column
        parts = ["<h2>Final results</h2>", table(list(zip(*rows, strict=True))[1:], heads=True)]
    else:
        own = [k for k, group in enumerate(groups) for run in group.runs if run.result is not None]
        parts = ["<h2>Final results</h2>", table(rows, heads=True, first=True, rows_of=own)]
    for number, group in enumerate(groups):
        for run in group.runs:
            workers = worker_rows(run.result) if run.result is not None else []
            if workers:
                parts.append(folded(f"Workers of {run.name}", table(workers, first=True), number))
    return parts


def _recipes(groups: list[Group]) -> list[str]:
    """The settings of the choices, without what tells their seeds apart."""
    if not any(run.recipe for group in groups for run in group.runs):
        return []
    different, same = recipes(groups)
    if len(groups) == 1:
        return ["<h2>Recipe</h2>", folded("All settings", table(same, heads=True))]
    parts = ["<h2>Differences between the recipes</h2>"]
    if different:
        parts.append(table(different, heads=True, first=True, columns_of=range(len(groups))))
    else:
        parts.append("<p>None except the folder.</p>")
    return [*parts, folded("Common to all recipes", table(same, heads=True))] if same else parts
