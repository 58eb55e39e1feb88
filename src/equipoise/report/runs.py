"""Load the folder of a run. Missing or damaged files become notes; the rest is still used."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..core.toml import read_toml
from ..observe.events import parse_events
from ..observe.result_file import read_result


@dataclass
class LoadedRun:
    """The content of a run's folder. `notes`: one line for each problem that a reader should know about."""

    folder: Path
    name: str
    events: list[dict[str, Any]]
    recipe: dict[str, Any]
    result: dict[str, Any] | None
    notes: list[str] = field(default_factory=list)

    @property
    def workers(self) -> int:
        return 1 + max((e["worker"] for e in self.events if isinstance(e["worker"], int)), default=-1)


def load_runs(folders: Sequence[Path]) -> list[LoadedRun]:
    """Runs with unique names: the name of the folder, or the path if two folders have the same name."""
    names = [folder.resolve().name for folder in folders]
    resolved = [str(folder.resolve()) for folder in folders]
    if len(set(names)) < len(names):
        common = os.path.commonpath(resolved) if len(set(resolved)) > 1 else os.path.dirname(resolved[0])
        names = [os.path.relpath(path, common) for path in resolved]
    return [load_run(folder, name) for folder, name in zip(folders, names, strict=True)]


def print_notes(runs: list[LoadedRun]) -> None:
    """Print the notes of all runs on stderr."""
    for run in runs:
        for note in run.notes:
            print(f"note: {run.folder}: {note}", file=sys.stderr)


def load_run(folder: Path, name: str = "") -> LoadedRun:
    if not (folder / "events.jsonl").is_file():
        raise UserError(f"{folder} is not the folder of a run: it has no events.jsonl")
    notes: list[str] = []
    events = _events(folder, notes)
    recipe = _recipe(folder, notes)
    result = _result(folder, events, notes)
    return LoadedRun(folder, name or folder.resolve().name, events, recipe, result, notes)


def _events(folder: Path, notes: list[str]) -> list[dict[str, Any]]:
    try:
        events, broken = parse_events((folder / "events.jsonl").read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise UserError(f"{folder / 'events.jsonl'}: cannot be read ({error.strerror})") from None
    if broken:
        lines = "1 line is" if broken == 1 else f"{broken:,} lines are"
        notes.append(f"events.jsonl: {lines} damaged and left out (a process killed while writing leaves one)")
    if not events:
        notes.append("events.jsonl is empty: the run ended before its first step, so there are no curves")
    return events


def _recipe(folder: Path, notes: list[str]) -> dict[str, Any]:
    from .. import __version__

    if not (folder / "recipe.toml").is_file():
        notes.append("no recipe.toml: the run was started from Python, or the file is lost; its recipe is not shown")
        return {}
    try:
        recipe = read_toml(folder / "recipe.toml")
    except UserError as error:
        notes.append(f"the recipe is left out: {error}")
        return {}
    versions = recipe.get("versions")
    written_by = versions.get("equipoise") if isinstance(versions, dict) else None
    if written_by is not None and written_by != __version__:
        notes.append(f"written by Equipoise {written_by}, read by {__version__}: names and defaults may have changed")
    return recipe


def _result(folder: Path, events: list[dict[str, Any]], notes: list[str]) -> dict[str, Any] | None:
    resume = f"`equipoise resume {folder}`"
    if not (folder / "result.json").is_file():
        stopped = any(e["event"] == "stopped" for e in events)
        last = max((e["step"] for e in events if isinstance(e["step"], int)), default=0)
        state = "stopped" if stopped else "not finished (crashed or still running); the last event is"
        notes.append(f"{state} at step {last:,}: continue with {resume}")
        return None
    try:
        return read_result(folder)
    except (OSError, ValueError) as error:
        notes.append(f"result.json cannot be read ({error}): write it again with {resume}")
        return None
