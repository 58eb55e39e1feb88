"""One static page about one run or several: readable on a phone, in the dark, and without a network."""

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
from .payload import WORDS, payload
from .runs import LoadedRun, load_runs, say
from .sections import citations, topologies
from .tables import ends, recipes, worker_rows

Table = tuple[list[str], list[list[str]]]

NO_PLOTLY = "no curves: they need plotly (pip install plotly), then write the page again"


def write_page(
    runs: Sequence[Path], out: Path | None = None, *, title: str = "", sentence: str = "", table: Table | None = None
) -> list[Path]:
    """Write the page about `runs`; what was written.

    out: the file; RUN/report.html for a single run and report.html for several where it is left out.
    title, sentence, table: what to put in front; `table` is a heading and rows.
    """
    loaded = load_runs([Path(run) for run in runs])
    path = out if out is not None else (loaded[0].folder / "report.html" if len(loaded) == 1 else Path("report.html"))
    text = page(loaded, title=title, sentence=sentence, front=table)
    say(loaded)
    if library() is None:
        print(f"note: {NO_PLOTLY}", file=sys.stderr)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another file with --out") from None
    return [path]


def library() -> Path | None:
    """The script of plotly, as the Python package brings it."""
    found = importlib.util.find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return path if path.is_file() else None


def page(runs: list[LoadedRun], *, title: str = "", sentence: str = "", front: Table | None = None) -> str:
    graphs = topologies(runs)  # first: what cannot be drawn becomes a note
    title = title or (runs[0].name if len(runs) == 1 else f"{len(runs)} runs side by side")
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
    parts += [*_ends(runs), *graphs, *_recipes(runs), *citations(runs)]
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
        '<p class="note" id="trouble" hidden></p><noscript><p class="note">The curves need JavaScript.</p></noscript>',
        f'<div class="controls"><div class="row"><span>against</span><span class="row" id="axes">{axes}</span>'
        f'<button id="scale" aria-pressed="false">log scale</button></div>'
        f'<div class="row runs" id="runs"{hidden}>{names}</div></div>',
        '<div class="plots">',
        *(_card(plot["title"], WORDS[plot["title"]], plot["id"]) for plot in data["plots"]),
        "</div>",
        "<h2>Where the workers' time went</h2>",
    ]
    if data["accounts"]:
        parts.append('<div class="plots">')
        if len(data["accounts"]) > 1:
            words = "Mean over workers of each run."
            parts.append(_card("All runs", words, "time-all", max(12, 1.7 * len(data["accounts"]) + 7)))
        for about in data["accounts"]:
            if not about["detailed"]:
                continue
            left = f" The first {len(about['strips'])} workers." if about["left"] else ""
            tall = max(12, 1.7 * len(about["workers"]) + 7)
            parts.append(_card(about["name"], f"In all, {about['clock']}.", about["id"] + "-bars", tall))
            tall = max(12, 2.2 * len(about["strips"]) + 7)
            parts.append(_card(about["name"], f"Over time, a strip per worker.{left}", about["id"] + "-strips", tall))
        parts.append("</div>")
    else:
        parts.append("<p>Not in the events of these runs: an older version wrote them, or they ended too early.</p>")
    if data["classes"]:
        parts += ["<h2>Which classes the workers own</h2>", '<div class="plots">']
        for about in data["classes"]:
            tall = max(12, 1.7 * len(about["counts"]) + 7)
            parts.append(_card(", ".join(about["runs"]), "Examples by class.", about["id"], tall))
        parts.append("</div>")
    return parts


def _card(title: str, words: str, name: str, tall: float | None = None) -> str:
    height = f' style="height:{min(tall, 60):.0f}rem"' if tall else ""
    return (
        f'<div class="card"><h3>{html.escape(title)}</h3><p>{html.escape(words)}</p>'
        f'<div class="plot" id="{name}"{height}></div></div>'
    )


@functools.cache
def _packed(script: Path) -> str:
    return base64.b64encode(gzip.compress(script.read_bytes(), 9, mtime=0)).decode()


def _scripts(script: Path, data: dict[str, Any]) -> list[str]:
    inside = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return [
        f'<script type="text/plain" id="library">{_packed(script)}</script>',
        f'<script type="application/json" id="data">{inside}</script>',
        f"<script>\n{asset('page.js')}</script>",
    ]


def _ends(runs: list[LoadedRun]) -> list[str]:
    rows = ends(runs)
    if not rows:
        return []
    if len(rows) == 2:  # a single run reads better from top to bottom
        parts = ["<h2>The end</h2>", table(list(zip(*rows, strict=True))[1:], heads=True)]
    else:
        parts = ["<h2>The ends</h2>", table(rows, heads=True, first=True)]
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
        return ["<h2>The recipe</h2>", folded("Every choice", table(same, heads=True))]
    parts = ["<h2>What differs in the recipes</h2>"]
    parts.append(table(different, heads=True, first=True) if different else "<p>Nothing but the folder.</p>")
    return [*parts, folded("What all have in common", table(same, heads=True))] if same else parts
