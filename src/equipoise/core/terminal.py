"""Prose on a terminal: lines end between words. Elsewhere text stays as it is, for programs that read it."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

_COMMAND = re.compile(r"\s*(\$ )?(equipoise|torchrun|python|pip) ")
_GAP = re.compile(r"\S {2,}(?=\S)")
_LEAST = 20  # columns; a narrower terminal has to break words


def say(text: str, *, error: bool = False) -> None:
    """Print on stdout, or on stderr; folded where somebody reads it."""
    stream = sys.stderr if error else sys.stdout
    width = width_of(stream)
    print(folded(text, width) if width is not None else text, file=stream, flush=True)


def starting(what: str, *, quiet: bool = False) -> None:
    """A sign of life before torch is imported, which takes longer than people like to look at an empty screen."""
    if not quiet and sys.stderr.isatty():
        print(f"starting: {what}", file=sys.stderr, flush=True)


def width_of(stream: TextIO) -> int | None:
    """Columns of the terminal; None if the stream is none."""
    if not stream.isatty():
        return None
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return max(_LEAST, int(given))
    try:
        return max(_LEAST, os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        return 80


def folded(text: str, width: int) -> str:
    """The text in lines of at most `width`, broken between words.

    Paragraphs are filled. An indented line keeps its indent, and a line of two columns that of the second one. A
    command goes on after a backslash, so that it can still be copied. What fits stays as it is.
    """
    out: list[str] = []
    paragraph: list[str] = []
    for line in [*text.split("\n"), None]:
        if line and not line.startswith(" ") and not _GAP.search(line) and not _COMMAND.match(line):
            paragraph.append(line)
            continue
        if any(len(row) > width for row in paragraph):
            paragraph = _wrapped(" ".join(paragraph), width, "")
        out += paragraph
        paragraph = []
        if line is not None:
            out += [line] if len(line) <= width else _long(line, width)
    return "\n".join(out)


def fitting(head: Sequence[str], body: Sequence[Sequence[str]], width: int, least_first: Sequence[str]) -> list[int]:
    """The columns of a table with rules that fit without a broken word; those in `least_first` go first, in order."""
    longest = [
        max([*map(len, title.split()), *(len(line[i]) for line in body)], default=0) for i, title in enumerate(head)
    ]
    kept = list(range(len(head)))
    for title in least_first:
        if sum(longest[i] for i in kept) + 3 * len(kept) + 1 <= width:
            break
        kept = [i for i in kept if head[i] != title]
    return kept


def show_table(
    head: Sequence[str],
    body: Sequence[Sequence[str]],
    least_first: Sequence[str],
    *,
    left: int = 0,
    fitted: Sequence[Sequence[str]] | None = None,
) -> None:
    """A table on a terminal, without the columns for which it is too narrow; these are named.

    left: the column of names, which may be wrapped. fitted: rows that decide about the columns, if not all do.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    kept = fitting(head, body if fitted is None else fitted, console.width, least_first)
    table = Table()
    for i in kept:
        table.add_column(Text(head[i]), justify="left" if i == left else "right")
    for line in body:
        table.add_row(*(Text(line[i]) for i in kept))
    console.print(table)
    if len(kept) < len(head):
        console.print(Text(f"not shown here: {', '.join(head[i] for i in range(len(head)) if i not in kept)}"))


def _long(line: str, width: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    if _COMMAND.match(line):
        together = re.sub(r"(--\S+) (?=[^-\s])", "\\1\0", line)  # a flag and its value
        rows = [row.replace("\0", " ") for row in _wrapped(together, width - 2, indent + "    ")]
        return [*(f"{row} \\" for row in rows[:-1]), rows[-1]]
    gaps = [match.end() for match in _GAP.finditer(line) if match.end() <= 0.6 * width]
    return _wrapped(line, width, " " * gaps[-1] if gaps else indent)


def _wrapped(text: str, width: int, hanging: str) -> list[str]:
    lead = text[: len(text) - len(text.lstrip())]
    rows = textwrap.wrap(
        text.strip(),
        width,
        initial_indent=lead,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return rows or [text]
