"""One static page about one run or several: readable on a phone, in the dark, and without a network."""

from __future__ import annotations

import base64
import gzip
import html
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from .curves import AXES, streams
from .html import asset, document, folded, table
from .runs import Loaded, load_runs, say
from .sections import citations, topologies
from .tables import ends, recipes, worker_rows
from .workers import KINDS, accounts, class_counts

Table = tuple[list[str], list[list[str]]]

# Told apart by colour-blind eyes, and readable on white and on black.
_COLOURS = ["#3b82c4", "#d9722e", "#2a9d6f", "#b5559c", "#b8961e", "#6b6fd6", "#d1495b", "#3f9fa0", "#8d6e53", "#7a8794"]
_KIND_COLOURS = ["#3b82c4", "#d9a441", "#b5559c"]
_CLASSES = 20  # more colours than these nobody can tell apart
_WORDS = {
    "Training loss": "Mean over workers since the last point; the band is from least to most.",
    "Test accuracy": "On the test data: solid for the mean of the workers' models, dashed for the centre.",
    "Test loss": "On the test data: solid for the mean of the workers' models, dashed for the centre.",
    "Consensus": "Root mean square distance of the workers' models from their mean.",
    "Learning rate": "As the optimizer used it.",
    "Batch size": "Examples per step of all workers; points: the gradient noise scale, where a rule measured it.",
    "Herding": "Largest prefix of centred gradients of an epoch, as a part of a random order's (dotted: 1).",
}
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


def page(runs: list[Loaded], *, title: str = "", sentence: str = "", front: Table | None = None) -> str:
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
    parts += [*_ends(runs), *topologies(runs), *_recipes(runs), *citations(runs)]
    if script is not None and data["plots"]:
        parts += _scripts(script, data)
    return document(title, parts)


def payload(runs: list[Loaded]) -> dict[str, Any]:
    """Everything that the page draws, as plain data."""
    plots: dict[str, list[dict[str, Any]]] = {name: [] for name in _WORDS}
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
        "plots": [_plot(k, name, lines) for k, (name, lines) in enumerate(plots.items()) if lines],
        "accounts": [{"id": f"time-{k}", "name": r.name, **a} for k, r in enumerate(runs) if (a := accounts(r))],
        "classes": _classes(runs),
        "kinds": list(KINDS),
        "colours": _COLOURS,
        "kindColours": _KIND_COLOURS,
        "classColours": [c + shade for shade in ("", "80") for c in _COLOURS],
    }


def _plot(k: int, name: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    more: dict[str, Any] = {"reference": 1.0, "zero": True} if name == "Herding" else {}
    if name == "Batch size":
        more["log"] = any(line["style"] == "points" for line in lines)
    return {"id": f"plot-{k}", "title": name, "lines": lines, **more}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _classes(runs: list[Loaded]) -> list[dict[str, Any]]:
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


def _figures(data: dict[str, Any]) -> list[str]:
    axes = "".join(
        f'<button aria-pressed="{str(i == 0).lower()}">{a["label"]}</button>' for i, a in enumerate(data["axes"])
    )
    names = "".join(
        f'<button aria-pressed="true"><span class="dot" style="background:{_COLOURS[i % len(_COLOURS)]}"></span>'
        f"{html.escape(run['name'])}</button>"
        for i, run in enumerate(data["runs"])
    )
    hidden = " hidden" if len(data["runs"]) == 1 else ""
    parts = [
        '<p class="note" id="trouble" hidden></p><noscript><p class="note">The curves need JavaScript.</p></noscript>',
        f'<div class="controls"><div class="row"><span>against</span><span class="row" id="axes">{axes}</span>'
        f'<button id="scale" aria-pressed="false">log scale</button></div>'
        f'<div class="row runs" id="runs"{hidden}>{names}</div></div>',
        '<div class="plots">',
        *(_card(plot["title"], _WORDS[plot["title"]], plot["id"]) for plot in data["plots"]),
        "</div>",
        "<h2>Where the workers' time went</h2>",
    ]
    if data["accounts"]:
        parts.append('<div class="plots">')
        for about in data["accounts"]:
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


def _scripts(script: Path, data: dict[str, Any]) -> list[str]:
    packed = base64.b64encode(gzip.compress(script.read_bytes(), 9, mtime=0)).decode()
    inside = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return [
        f'<script type="text/plain" id="library">{packed}</script>',
        f'<script type="application/json" id="data">{inside}</script>',
        f"<script>\n{asset('page.js')}</script>",
    ]


def _ends(runs: list[Loaded]) -> list[str]:
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


def _recipes(runs: list[Loaded]) -> list[str]:
    if not any(run.recipe for run in runs):
        return []
    different, same = recipes(runs)
    if len(runs) == 1:
        return ["<h2>The recipe</h2>", folded("Every choice", table(same, heads=True))]
    parts = ["<h2>What differs in the recipes</h2>"]
    parts.append(table(different, heads=True, first=True) if different else "<p>Nothing but the folder.</p>")
    return [*parts, folded("What all have in common", table(same, heads=True))] if same else parts
