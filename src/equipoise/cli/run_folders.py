"""Folders on the command line: of a run, or of a comparison, which holds several."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..compare.page import read_comparison
from ..core.terminal import say


def runs_of(folder: Path) -> list[Path]:
    """The finished runs of a comparison, those of the best choice first; nothing if the folder holds none."""
    comparison = read_comparison(folder)
    return [path for _, path in comparison[-1]] if comparison is not None else []


def every_run(folders: Iterable[str]) -> list[Path]:
    """The folders, and for a comparison all its runs."""
    return [run for folder in map(Path, folders) for run in runs_of(folder) or [folder]]


def one_run(folder: str) -> Path:
    """The folder, and for a comparison the first run of its best choice, which is said."""
    inside = runs_of(Path(folder))
    if not inside:
        return Path(folder)
    say(f"{folder} is a comparison: taking a run of its best choice, {inside[0]}", error=True)
    return inside[0]
