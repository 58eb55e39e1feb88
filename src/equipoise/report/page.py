"""A static page about one or several runs; works offline, on phones and in dark mode."""

from __future__ import annotations

import base64
import functools
import gzip
import html
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from .html import asset, document, folded, table
from .payload import CAPTIONS, payload
from .runs import LoadedRun, load_runs, print_notes
from .sections import citations, topologies
from .tables import final_results, recipes, worker_rows
from .timeline import who_was_there

Table = tuple[list[str], list[list[str]]]

NO_PLOTLY = "no curves: they need plotly; pip install 'equipoise[pages]', then write the page again"


def write_page(
    runs: Sequence[Path], out: Path | None = None, *, title: str = "", sentence: str = "", table: Table | None = None
) -> list[Path]:
    """Write the page about `runs` and return the files written.

    out: the file; by default RUN/report.html for a single run and report.html for several.
    title, sentence, table: shown first; `table` is a heading and rows.
    """
    loaded = load_runs([Path(run) for run in runs])
    path = out if out is not None else (loaded[0].folder / "report.html" if len(loaded) == 1 else Path("report.html"))
    text = page(loaded, title=title, sentence=sentence, front=table)
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


def page(runs: list[LoadedRun], *, title: str = "", sentence: str = "", front: Table | None = None) -> str:
    graphs = topologies(runs)  # first, because it may add notes to the runs
    title = title or (runs[0].name if len(runs) == 1 else f"Comparison of {len(runs)} runs")
    parts = [f"<h1>{html.escape(title)}</h1>"]
    if sentence:
        parts.append(f'<p class="sentence">{html.escape(sentence)}</p>')
    if front is not None:
        parts.append(table([front[0], *front[1]], first=True))
    for run in runs:
        owner = f"{run.name}: " if len(runs) > 1 else ""
        parts += [f'<p class="note">{html.escape(owner + note)}</p>' for note in run.notes]
    data = payload(runs)
    script = library()
    if script is None:
        parts.append(f'<p class="note">{html.escape(NO_PLOTLY)}</p>')
    elif data["plots"]:
        parts += _figures(data)
    parts += [*who_was_there(runs), *_final_results(runs), *graphs, *_recipes(runs), *citations(runs)]
    if script is not None and data["plots"]:
        parts += _scripts(script, data)
    return document(title, parts)


def _figures(data: dict[str, Any]) -> list[str]:
    axes = "".join(
        f'<button aria-pressed="{str(a["key"] == data["first"]).lower()}">{a["label"]}</button>' for a in data["axes"]
    )
    names = "".join(
        f'<button aria-pressed="true"><span class="dot" style="background:{colour}"></span>'
        f"{html.escape(run['name'])}</button>"
        for run, colour in zip(data["runs"], data["colours"], strict=True)
    )
    hidden = " hidden" if len(data["runs"]) == 1 else ""
    parts = [
        '<p class="note" id="error" hidden></p><noscript><p class="note">The curves need JavaScript.</p></noscript>',
        f'<div class="controls"><div class="row"><span>x-axis</span><span class="row" id="axes">{axes}</span>'
        f'<button id="scale" aria-pressed="false">log scale</button></div>'
        f'<div class="row runs" id="runs"{hidden}>{names}</div></div>',
        '<div class="plots">',
        *(_card(plot["title"], CAPTIONS[plot["title"]], plot["id"]) for plot in data["plots"]),
        "</div>",
        "<h2>Time of the workers</h2>",
    ]
    if data["accounts"]:
        parts.append('<div class="plots">')
        if len(data["accounts"]) > 1:
            height = max(12, 1.7 * len(data["accounts"]) + 7)
            parts.append(_card("All runs", "Mean over the workers of each run.", "time-all", height))
        for about in data["accounts"]:
            if not about["detailed"]:
                continue
            limited = f" The first {len(about['strips'])} workers." if about["left"] else ""
            height = max(12, 1.7 * len(about["workers"]) + 7)
            parts.append(_card(about["name"], f"Total, in {about['clock']}.", about["id"] + "-bars", height))
            height = max(12, 2.2 * len(about["strips"]) + 7)
            parts.append(
                _card(about["name"], f"Over time, one row per worker.{limited}", about["id"] + "-strips", height)
            )
        parts.append("</div>")
    else:
        parts.append(
            "<p>The events of these runs do not record it: an older version wrote them, or they ended too early.</p>"
        )
    if data["classes"]:
        parts += ["<h2>Classes per worker</h2>", '<div class="plots">']
        for about in data["classes"]:
            height = max(12, 1.7 * len(about["counts"]) + 7)
            parts.append(_card(", ".join(about["runs"]), "Examples by class.", about["id"], height))
        parts.append("</div>")
    return parts


def _card(title: str, caption: str, name: str, height: float | None = None) -> str:
    style = f' style="height:{min(height, 60):.0f}rem"' if height else ""
    return (
        f'<div class="card"><h3>{html.escape(title)}</h3><p>{html.escape(caption)}</p>'
        f'<div class="plot" id="{name}"{style}></div></div>'
    )


@functools.cache
def _packed(script: Path) -> str:
    return base64.b64encode(gzip.compress(script.read_bytes(), 9, mtime=0)).decode()


def _scripts(script: Path, data: dict[str, Any]) -> list[str]:
    content = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return [
        f'<script type="text/plain" id="library">{_packed(script)}</script>',
        f'<script type="application/json" id="data">{content}</script>',
        f"<script>\n{asset('page.js')}</script>",
    ]


def _final_results(runs: list[LoadedRun]) -> list[str]:
    rows = final_results(runs)
    if not rows:
        return []
    if len(rows) == 2:  # a single run is easier to read as a column
        parts = ["<h2>Final results</h2>", table(list(zip(*rows, strict=True))[1:], heads=True)]
    else:
        parts = ["<h2>Final results</h2>", table(rows, heads=True, first=True)]
    for run in runs:
        workers = worker_rows(run.result) if run.result is not None else []
        if workers:
            parts.append(folded(f"Workers of {run.name}", table(workers, first=True)))
    return parts


def _recipes(runs: list[LoadedRun]) -> list[str]:
    if not any(run.recipe for run in runs):
        return []
    different, same = recipes(runs)
    if len(runs) == 1:
        return ["<h2>Recipe</h2>", folded("All settings", table(same, heads=True))]
    parts = ["<h2>Differences between the recipes</h2>"]
    parts.append(table(different, heads=True, first=True) if different else "<p>None except the folder.</p>")
    return [*parts, folded("Common to all recipes", table(same, heads=True))] if same else parts
