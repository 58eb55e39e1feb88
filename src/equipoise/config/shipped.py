"""Recipes and cluster files that come with the package, by name: `equipoise train office`, `--cluster office`.

A file of the user's goes first: a name is looked up only where no such file exists.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..core.errors import UserError, did_you_mean

FOLDER = Path(__file__).parents[1] / "recipes"
_FOLDERS = {"recipe": FOLDER, "cluster": FOLDER / "clusters"}


def names(kind: str) -> list[str]:
    """Of the recipes for typical users, or of the clusters."""
    return sorted(path.stem for path in _FOLDERS["cluster"].glob("*.toml") if (_FOLDERS[kind] / path.name).is_file())


def find(kind: str, given: str | Path) -> Path:
    """The file that a word on the command line means."""
    path, word = Path(given).expanduser(), str(given)
    if word in names(kind) and not os.path.isfile(path):
        return _FOLDERS[kind] / f"{word}.toml"
    if path.suffix or len(path.parts) > 1 or os.path.exists(path):
        return path
    hint = did_you_mean(word, names(kind))
    raise UserError(f"{word}: no such file, and no {kind} of this name comes with Equipoise: {hint}")
