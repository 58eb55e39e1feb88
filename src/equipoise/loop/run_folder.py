"""The folder of a run, claimed once."""

from __future__ import annotations

from pathlib import Path

from ..checkpoint.store import available
from ..comm.base import Comm
from ..core.errors import CheckpointError, UserError


def prepare_folder(folder: Path, *, first: bool = True) -> None:
    """Make the folder of a new run, and refuse one that holds a run. Only the `first` process may claim it."""
    if first and ((folder / "events.jsonl").exists() or available(folder)):
        raise CheckpointError(f"{folder} holds a run already: resume it, or choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if first:
            (folder / "events.jsonl").touch()
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another folder") from None


def claim_folder(comm: Comm, folder: Path, *, resumed: bool) -> None:
    """The same for workers that run already: worker 0 claims the folder, and all raise what it raises."""
    problem: Exception | None = None
    if comm.rank == 0 and not resumed:
        try:
            prepare_folder(folder)
        except UserError as error:
            problem = error
    problem = comm.gather_objects(problem)[0]
    if problem is not None:
        raise problem
    folder.mkdir(parents=True, exist_ok=True)  # on a host that has its own
