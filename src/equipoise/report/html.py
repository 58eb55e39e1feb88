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
        f"<style>\n{asset('page.css')}</style></head>\n<body>\n<main>\n{body}\n</main>\n</body></html>\n"
    )


def table(
    rows: Iterable[Sequence[str]],
    *,
    heads: bool = False,
    first: bool = False,
    rows_of: Sequence[int | None] = (),
    columns_of: Sequence[int] = (),
) -> str:
    """`heads`: the first cell of every row is a heading; `first`: every cell of the first row is.

    rows_of, columns_of: the numbers of the choices that the rows after the first, or the columns after the first, tell
    of: they go when the choice is hidden. A cell carries the heading of its column, for phones, where a row is a block.
    """
    rows = [[str(cell) for cell in row] for row in rows]
    titles = rows[0] if first and rows else []
    lines = []
    for i, row in enumerate(rows):
        cells = []
        for j, cell in enumerate(row):
            marks = f' data-choice="{columns_of[j - 1]}"' if columns_of and j else ""
            if first and i == 0:
                cells.append(f'<th scope="col"{marks}>{escape(cell)}</th>')
            elif heads and j == 0:
                cells.append(f'<th scope="row">{escape(cell)}</th>')
            else:
                title = f' data-title="{escape(titles[j], quote=True)}"' if titles and titles[j] else ""
                cells.append(f"<td{marks}{title}>{escape(cell)}</td>")
        number = rows_of[i - 1] if rows_of and i else None
        mark = f' data-choice="{number}"' if number is not None else ""
        lines.append(f"<tr{mark}>{''.join(cells)}</tr>")
    kind = ' class="titled"' if titles else ""
    return f'<div class="wide"><table{kind}>' + "\n".join(lines) + "</table></div>"


def folded(title: str, content: str, choice: int | None = None) -> str:
    """`choice`: goes when that one is hidden."""
    mark = f' data-choice="{choice}"' if choice is not None else ""
    return f"<details{mark}><summary>{escape(title)}</summary>\n{content}\n</details>"


def section(parts: list[str], *, fold: bool) -> list[str]:
    """A heading and what follows it; folded under its heading if `fold`."""
    if not parts or not fold:
        return parts
    return [f'<details class="section"><summary>{parts[0]}</summary>', *parts[1:], "</details>"]
