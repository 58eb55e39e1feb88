"""A bar on stderr while a partition is computed, where somebody asked for it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_wanted: ContextVar[bool] = ContextVar("wanted", default=False)


@contextlib.contextmanager
def shown(wanted: bool = True) -> Iterator[None]:
    """Partitions computed inside show a bar (if they take long enough to be seen)."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


@contextlib.contextmanager
def bar(words: str, total: int) -> Iterator[Callable[[int], None]]:
    """Gives the function to call with the number of examples that have been assigned."""
    if not _wanted.get() or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    words_and_bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    columns = (*words_and_bar, TextColumn("ETA"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(words, total=total)
        yield lambda count: progress.advance(task, count)
