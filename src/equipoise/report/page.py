"""One static page about one run: readable on a phone, in the dark, and without a network."""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..observe.events import read_events
from ..recipe import read_toml
from .batch_figures import batches
from .figures import curves

_STYLE = """
:root { color-scheme: light dark; --ink: #1d1d1f; --paper: #ffffff; --line: #d5d5da; --soft: #63636b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8ea; --paper: #17171a; --line: #3a3a40; --soft: #a0a0a8; }
}
body { margin: 2rem auto; max-width: 56rem; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif;
       color: var(--ink); background: var(--paper); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } p { color: var(--soft); }
img { width: 100%; height: auto; background: #ffffff; border-radius: 8px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 0.8rem 0.3rem 0;
         border-bottom: 1px solid var(--line); }
td { overflow-wrap: anywhere; } th { font-weight: 600; white-space: nowrap; }
"""


def write_page(run: Path) -> list[Path]:
    """Write RUN/report.html, and the pictures in it where they can be drawn; what was written."""
    if not (run / "events.jsonl").is_file():
        raise UserError(f"{run} is not the folder of a run: it has no events.jsonl")
    events = read_events(run)
    drawn = {"curves.png": curves(events), "batches.png": batches(events)}
    pictures = {name: picture for name, picture in drawn.items() if picture is not None}
    written = []
    try:
        for name, picture in pictures.items():
            written.append(run / name)
            written[-1].write_bytes(picture)
        written.append(run / "report.html")
        written[-1].write_text(page(run, pictures), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {written[-1]}: {error.strerror}") from None
    return written


_WORDS = {
    "curves.png": "Training loss against steps; the mean model per epoch",
    "batches.png": "Batch size and gradient noise scale against samples",
}


def page(run: Path, pictures: dict[str, bytes]) -> str:
    recipe = read_toml(run / "recipe.toml") if (run / "recipe.toml").is_file() else {}
    result = read_result(run)
    parts = [f"<h1>{html.escape(run.resolve().name)}</h1>"]
    if result is None:
        parts.append(f"<p>Not finished: go on with <code>equipoise resume {html.escape(str(run))}</code>.</p>")
    for name, picture in pictures.items():
        data = base64.b64encode(picture).decode()
        parts.append(f'<img alt="{_WORDS[name]}" src="data:image/png;base64,{data}">')
    if result is not None:
        from ..cli.summary import rows

        parts += [
            "<h2>The end</h2>",
            _table(rows(result, run), heads=True),
            "<h2>Workers</h2>",
            _workers(result["workers"]),
        ]
    if recipe:
        parts += ["<h2>The recipe</h2>", _table(_flat(recipe), heads=True)]
    title = html.escape(f"{run.resolve().name} - Equipoise")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style></head>\n"
        f"<body>\n{chr(10).join(parts)}\n</body></html>\n"
    )


def read_result(run: Path) -> dict[str, Any] | None:
    """The end of a run; None where it has not come to one."""
    try:
        return json.loads((run / "result.json").read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{run / 'result.json'} cannot be read ({type(error).__name__}): resume the run to write it again"
        ) from None


def _flat(recipe: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    for key, value in recipe.items():
        if isinstance(value, dict):
            found.append((key, ", ".join(f"{v}" if k == "name" else f"{k} {v}" for k, v in value.items())))
        else:
            found.append((key, str(value)))
    return found


def _workers(rows: list[dict[str, Any]]) -> str:
    columns = [name for name in rows[0] if rows[0][name] is not None]
    body = [[f"{row[c]:,.2f}" if isinstance(row[c], float) else f"{row[c]:,}" for c in columns] for row in rows]
    return _table([[c.replace("_", " ") for c in columns], *body], first=True)


def _table(rows: Any, *, heads: bool = False, first: bool = False) -> str:
    """`heads`: the first cell of every row is a heading; `first`: the whole first row is."""
    lines = []
    for i, row in enumerate(rows):
        tags = ["th" if (first and i == 0) or (heads and j == 0) else "td" for j in range(len(row))]
        cells = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for tag, cell in zip(tags, row, strict=True))
        lines.append(f"<tr>{cells}</tr>")
    return '<div class="wide"><table>' + "\n".join(lines) + "</table></div>"
