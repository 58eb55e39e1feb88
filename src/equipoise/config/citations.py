"""BibTeX for what a run used: the papers of its methods, and Equipoise itself.

`citations.bib` beside this file holds the entries. A method names its own in its metadata; the table here is of options
and settings that have a paper.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import CheckpointError, UserError
from ..core.json import parse_json
from ..core.toml import read_toml
from .fingerprint import flattened
from .registry import AXES
from .registry import entries as registered

if TYPE_CHECKING:
    from ..loop.train import Run

# Options and settings with a paper of their own: (key of the flat recipe, value or None for any) -> keys.
_OPTIONS = {
    ("order.sign", "halving"): "carrell2025lowrank",
    ("order.sign", "walk"): "alweiss2021discrepancy",
    ("optimizer", "adam"): "kingma2015adam",
    ("optimizer", "adamw"): "loshchilov2019decoupled",
    ("schedule", "cosine"): "loshchilov2017sgdr",
    ("scaling", "linear"): "goyal2017accurate",
    ("scaling", "adascale"): "johnson2020adascale",
    ("sam", None): "foret2021sharpness",
}


def cite(run: Run | Path | str) -> str:
    """BibTeX entries for what a run used, a blank line between them; Equipoise comes first.

    run: what `eq.train` gave, if it wrote a folder, or the folder of a run. Choices that are common knowledge have no
        entry.
    """
    folder = getattr(run, "folder", run)
    if folder is None:
        raise UserError("this run has no folder, so its choices are not known: pass out=... to eq.train")
    return cite_all([folder])


def cite_all(folders: list[Any]) -> str:
    """The same for several runs, every entry once."""
    keys = dict.fromkeys(key for folder in folders for key in keys_of(choices_of(Path(folder))))
    known = entries()
    return "\n\n".join([ours(), *(known.get(key, key) for key in keys)]) + "\n"


def choices_of(folder: Path) -> dict[str, Any]:
    """The choices of a run in one level, such as "sync.name": "detag", "order.sign": "walk"."""
    path = folder / "recipe.toml"
    if path.is_file():
        return flattened(read_toml(path))
    if not (folder / "checkpoints").is_dir():
        raise UserError(f"{folder} is not the folder of a run: it has no recipe.toml")
    return _fingerprint_of(folder)


def _fingerprint_of(folder: Path) -> dict[str, Any]:
    """The choices of a run of `eq.train` or `eq.attach`, which write no recipe: from its newest checkpoint."""
    manifests = sorted(folder.glob("checkpoints/step-*/manifest.json"), key=lambda p: int(p.parent.name.split("-")[1]))
    if not manifests:
        raise UserError(f"{folder} has neither a recipe nor a checkpoint: its choices are not known")
    try:
        choices: dict[str, Any] = dict(parse_json(manifests[-1].read_text(encoding="utf-8"))["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{manifests[-1]} is damaged ({type(error).__name__}): remove that checkpoint") from None
    return choices


def keys_of(choices: dict[str, Any]) -> list[str]:
    """The entries behind choices: keys of citations.bib, or BibTeX as methods of other packages declare it."""
    cites = {(entry.axis, entry.name): entry.cites for entry in registered()}
    keys = [key for axis in AXES for key in cites.get((axis, choices.get(f"{axis}.name", "")), ())]
    for (name, value), key in _OPTIONS.items():
        if choices.get(name) is not None and value in (None, choices[name]):
            keys.append(key)
    if choices.get("sync.name") == "diloco" and (choices.get("sync.fragments", 1) != 1 or choices.get("sync.delay", 0)):
        keys.append("douillard2025streaming")
    return keys


def entries() -> dict[str, str]:
    """Every entry of citations.bib by its key."""
    text = Path(__file__).with_name("citations.bib").read_text(encoding="utf-8")
    parts = [part.strip() for part in re.split(r"\n\s*\n(?=@)", text)]
    return {part.split("{", 1)[1].split(",", 1)[0]: part for part in parts}


def ours() -> str:
    """Equipoise, as CITATION.cff says it."""
    from .. import __version__

    return (
        "@software{equipoise,\n"
        "  author  = {{The Equipoise developers}},\n"
        "  title   = {{Equipoise}: training one model on unequal workers},\n"
        f"  version = {{{__version__}}}\n"
        "}"
    )
