"""A bar on stderr during long work, where somebody asked for it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from typing import TypeVar

Part = TypeVar("Part")

_wanted: ContextVar[bool] = ContextVar("wanted", default=False)


@contextlib.contextmanager
def shown(wanted: bool = True) -> Iterator[None]:
    """Long work inside shows a bar; what is a part of other such work shows none of its own."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


@contextlib.contextmanager
def bar(words: str, total: int) -> Iterator[Callable[[int], None]]:
    """Gives the function to call with how many more of `total` are done."""
    if not _wanted.get() or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    words_and_bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    columns = (*words_and_bar, TextColumn("ETA"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(words, total=total)
        with shown(False):
            yield lambda count: progress.advance(task, count)


def tracked(words: str, parts: Collection[Part]) -> Iterator[Part]:
    """The parts of some long work, one after the other."""
    with bar(words, len(parts)) as advance:
        for part in parts:
            yield part
            advance(1)
