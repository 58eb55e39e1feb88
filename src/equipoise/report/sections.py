"""Sections of a page that use other packages: the cluster, topology pictures, citations."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..simulate.cluster import Cluster
from ..simulate.describe import describe
from .html import folded, table
from .runs import LoadedRun
from .seeds import Group

_MOST_WORKERS = 64  # a drawing of more is a black disc


def cluster(runs: list[LoadedRun]) -> list[str]:
    """Speeds and links of the described cluster on which the runs were simulated."""
    for run in runs:
        named = run.recipe.get("cluster")
        if not isinstance(named, str):
            continue
        # A comparison keeps a copy beside its runs, which moves with them; the path in the recipe may not.
        beside = run.folder.resolve().parents
        for path in (*(folder / "cluster.toml" for folder in beside[:2]), Path(named)):
            try:
                rows = describe(Cluster.load(path))
            except (UserError, OSError):
                continue
            indented = [(name.replace("  ", "\u2003"), value) for name, value in rows]
            return ["<h2>Cluster</h2>", table(indented, heads=True)]
    return []


def topologies(groups: list[Group]) -> list[str]:
    """The graph of every choice that uses a topology, each once, with the names of its choices."""
    pictures: dict[str, list[str]] = {}
    for group in groups:
        for picture in dict.fromkeys(filter(None, map(_topology, group.runs))):
            pictures.setdefault(picture, []).append(group.name)
    parts = ["<h2>Topology</h2>"] if pictures else []
    for picture, names in pictures.items():
        words = html.escape(", ".join(names))
        caption = f"<p>{words}</p>" if len(groups) > 1 else ""
        parts.append(
            f'<div class="picture">{caption}<div role="img" aria-label="Topology of {words}">{picture}</div></div>'
        )
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
