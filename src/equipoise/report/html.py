"""Building blocks of every page: document, tables, collapsible sections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files


def asset(name: str) -> str:
    """The content of a file in this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def document(title: str, parts: Sequence[str]) -> str:
    """A complete page that loads nothing from elsewhere."""
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - Equipoise</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<style>\n{asset('page.css')}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def table(rows: Iterable[Sequence[str]], *, heads: bool = False, first: bool = False) -> str:
    """`heads`: the first cell of every row is a heading; `first`: every cell of the first row is."""
    lines = []
    for i, row in enumerate(rows):
        tags = ["th" if (first and i == 0) or (heads and j == 0) else "td" for j in range(len(row))]
        cells = "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for tag, cell in zip(tags, row, strict=True))
        lines.append(f"<tr>{cells}</tr>")
    return '<div class="wide"><table>' + "\n".join(lines) + "</table></div>"


def folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n{content}\n</details>"
