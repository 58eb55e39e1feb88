"""Errors that a user can act on, and the exit codes of the command.

The first line of each says the cause and the fix; the command prints that line and exits with `code`.
"""

from __future__ import annotations

EXIT_CODES = {
    0: "done",
    1: "a fault of Equipoise itself: the traceback is printed, please report it",
    2: "the request cannot be carried out as written: an unknown name, a bad value, a missing file",
    3: "a worker failed: it raised, died, hung, or met a value that is not finite",
    4: "a checkpoint is missing, damaged, or belongs to another recipe",
    130: "stopped by Ctrl-C after writing a checkpoint",
    143: "stopped by SIGTERM after writing a checkpoint",
}


class UserError(ValueError):
    """The request cannot be carried out as written."""

    code = 2


class DataError(UserError):
    """A data file is missing, damaged or of another kind."""


class CheckpointError(UserError):
    """A checkpoint is missing, damaged, or belongs to another recipe."""

    code = 4


class WorkerError(RuntimeError):
    """A worker raised, died or hung. `rank` and `step` name it where they are known."""

    code = 3

    def __init__(self, message: str, rank: int | None = None, step: int | None = None):
        super().__init__(message)
        self.rank = rank
        self.step = step


class PeerLost(WorkerError):
    """A worker could not reach another one: the fault lies with the other."""


class NonFinite(WorkerError):
    """The loss or the gradient is NaN or infinite."""


def did_you_mean(name: str, known: list[str]) -> str:
    """A hint for an unknown name: the nearest known one, then all of them."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}known: {', '.join(known)}"
