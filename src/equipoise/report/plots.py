"""The parts of a page that its script fills: controls and one card for each plot."""

from __future__ import annotations

import base64
import functools
import gzip
import html
import json
from pathlib import Path
from typing import Any

from .html import asset, section
from .payload import CAPTIONS
from .seeds import Group

_SMOOTH = {"off": 0, "a little": 2, "much": 8}  # points on each side over which a line is averaged


def curves(data: dict[str, Any], groups: list[Group]) -> list[str]:
    """Controls, and one plot for each quantity."""
    seeds = max(len(group.runs) for group in groups)
    band = {"Training loss": " The band is the range over workers."} if seeds == 1 else {}
    about = "One line for each choice: the mean over seeds, in a band from the least to the most. " if seeds > 1 else ""
    stops = "A seed that has ended keeps its last value. " if seeds > 1 else ""
    return [
        "<h2>Curves</h2>",
        '<p class="note" id="error" hidden></p><noscript><p class="note">The curves need JavaScript.</p></noscript>',
        f"<p>{about}{stops}"
        '<span class="mouse">Drag across a plot to zoom in. Double-click it to see everything again.</span></p>',
        _controls(data),
        '<div class="plots">',
        *(
            card(
                plot["title"],
                CAPTIONS[plot["title"]] + band.get(plot["title"], ""),
                plot["id"],
                plot["words"],
                log=plot.get("log"),
            )
            for plot in data["plots"]
        ),
        "</div>",
    ]


def _controls(data: dict[str, Any]) -> str:
    axes = "".join(
        f'<option value="{a["key"]}"{" selected" if a["key"] == data["first"] else ""}>{a["label"]}</option>'
        for a in data["axes"]
    )
    smooth = "".join(f'<option value="{k}">{name}</option>' for name, k in _SMOOTH.items())
    chips = "".join(
        f'<span class="chip"><button data-show="{k}" aria-pressed="true"><span class="dot" style="background:{colour}">'
        f"</span>{html.escape(choice['name'])}</button>"
        f'<button data-only="{k}" aria-pressed="false" aria-label="only {html.escape(choice["name"], quote=True)}">only'
        "</button></span>"
        for k, (choice, colour) in enumerate(zip(data["choices"], data["colours"], strict=True))
    )
    hidden = " hidden" if len(data["choices"]) == 1 else ""
    return (
        f'<div class="controls" role="group" aria-label="What the page shows">'
        f'<div class="row"><label>x-axis <select id="axis">{axes}</select></label>'
        f'<label>smooth <select id="smooth">{smooth}</select></label></div>'
        f'<div class="row chips" id="choices"{hidden}>{chips}</div></div>'
    )


def workers(data: dict[str, Any]) -> list[str]:
    """Where the time of the workers goes: each choice as a whole, then worker by worker."""
    accounts = data["accounts"]
    parts = ["<h2>Time of the workers</h2>"]
    if not accounts:
        old = "an older version wrote them, or they ended too early"
        return [*parts, f"<p>The events of these runs do not record it: {old}.</p>"]
    several = len(accounts) > 1
    if several:
        words = "Mean time of a worker: " + "; ".join(
            f"{about['name']} " + ", ".join(f"{k} {v:.3g}" for k, v in zip(data["kinds"], about["mean"], strict=True))
            for about in accounts
        )
        caption = "Mean over workers and seeds of whole runs."
        parts += [
            '<div class="plots">',
            card("All choices", caption, "time-all", words, _height(1.9, len(accounts))),
            "</div>",
        ]
    cards = [text for about in accounts if about["detailed"] for text in _worker_cards(about)]
    if not cards:
        return parts
    detail = ["<h3>Worker by worker</h3>" if several else "", '<div class="plots">', *cards, "</div>"]
    return [*parts, *section(detail, fold=several)]


def _worker_cards(about: dict[str, Any]) -> list[str]:
    limited = f" The first {len(about['strips'])} workers." if about["left"] else ""
    total, rows = f"Total, in {about['clock']}.", f"Over time, one row for each worker.{limited}"
    size = len(about["workers"])
    return [
        card(
            about["run"],
            total,
            about["id"] + "-bars",
            f"{about['run']}: {total}",
            _height(1.7, size),
            choice=about["choice"],
        ),
        card(
            about["run"],
            rows,
            about["id"] + "-strips",
            f"{about['run']}: {rows}",
            _height(2.2, len(about["strips"])),
            choice=about["choice"],
        ),
    ]


def classes(data: dict[str, Any]) -> list[str]:
    if not data["classes"]:
        return []
    parts = ["<h2>Classes per worker</h2>", '<div class="plots">']
    for about in data["classes"]:
        names = ", ".join(about["runs"])
        words = f"Examples by class of {len(about['counts'])} workers: {names}"
        parts.append(card(names, "Examples by class.", about["id"], words, _height(1.7, len(about["counts"]))))
    return [*parts, "</div>"]


def _height(row: float, rows: int) -> float:
    return min(60.0, max(12.0, row * rows + 7))


def card(
    title: str,
    caption: str,
    name: str,
    words: str,
    height: float | None = None,
    *,
    log: bool | None = None,
    choice: int | None = None,
) -> str:
    """A plot with its title. `log`: offers a log scale, on or off at first; `choice`: goes when that one is hidden."""
    style = f' style="height:{height:.0f}rem"' if height else ""
    mark = f' data-choice="{choice}"' if choice is not None else ""
    shown = html.escape(title, quote=True)
    tools = f'<button data-log="{name}" aria-pressed="{str(log).lower()}">log scale</button>' if log is not None else ""
    for kind in ("png", "svg"):
        words_for_it = f"Save {shown} as {kind.upper()}"
        tools += f'<button data-save="{name}" data-kind="{kind}" aria-label="{words_for_it}">{kind.upper()}</button>'
    return (
        f'<div class="card"{mark}><div class="head"><h3>{shown}</h3><span class="tools">{tools}</span></div>'
        f'<p>{html.escape(caption)}</p><div class="plot" id="{name}"{style} role="img" '
        f'aria-label="{html.escape(words, quote=True)}"></div></div>'
    )


@functools.cache
def _packed(script: Path) -> str:
    return base64.b64encode(gzip.compress(script.read_bytes(), 9, mtime=0)).decode()


def scripts(script: Path, data: dict[str, Any]) -> list[str]:
    """The library, the data and the script that draws them."""
    content = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return [
        f'<script type="text/plain" id="library">{_packed(script)}</script>',
        f'<script type="application/json" id="data">{content}</script>',
        f"<script>\n{asset('page.js')}</script>",
    ]
