"""Sections of a page that use other packages: topology pictures, citations."""

from __future__ import annotations

import html
from typing import Any

from ..core.errors import UserError
from .html import folded
from .runs import LoadedRun

_MOST_WORKERS = 64  # a drawing of more is a black disc


def topologies(runs: list[LoadedRun]) -> list[str]:
    """The graph of every run that uses a topology, each once, with the names of its runs."""
    pictures: dict[str, list[str]] = {}
    for run in runs:
        picture = _topology(run)
        if picture:
            pictures.setdefault(picture, []).append(run.name)
    parts = ["<h2>Topology</h2>"] if pictures else []
    for picture, names in pictures.items():
        caption = f"<p>{html.escape(', '.join(names))}</p>" if len(runs) > 1 else ""
        parts.append(f'<div class="picture">{caption}{picture}</div>')
    return parts


def _topology(run: LoadedRun) -> str:
    chosen, size = run.recipe.get("topology"), run.recipe.get("workers")
    if not isinstance(chosen, dict) or not isinstance(size, int) or not 1 < size <= _MOST_WORKERS:
        return ""
    from ..config import registry
    from ..topology.drawing import svg

    options: dict[str, Any] = {k: v for k, v in chosen.items() if k != "name"}
    try:
        return svg(registry.get("topology", str(chosen.get("name")))(**options).on(size), inline=True)
    except (UserError, TypeError, KeyError) as error:  # written by another version
        run.notes.append(f"the topology cannot be drawn: {error}")
        return ""


def citations(runs: list[LoadedRun]) -> list[str]:
    """BibTeX for the methods that the runs used, each entry once."""
    from ..config.citations import cite

    entries: dict[str, None] = {}
    for run in runs:
        try:
            text = cite(run.folder)
        except (UserError, OSError):
            continue
        entries |= dict.fromkeys(entry.strip() for entry in text.split("\n\n") if entry.strip())
    if not entries:
        return []
    return ["<h2>Citations</h2>", folded("BibTeX", f"<pre>{html.escape(chr(10).join(entries))}</pre>")]
