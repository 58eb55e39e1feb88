"""Errors that a user can act on, and the exit codes of the command.

The first line of each says the cause and the fix; the command prints that line and exits with `code`.
"""

from __future__ import annotations

import traceback

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


class UnevenSteps(WorkerError):
    """A worker has left its loop, and another one waits for it in a further step."""

    @classmethod
    def between(cls, left: int, steps: int, other: int, step: int) -> UnevenSteps:
        return cls(
            f"worker {left} has left its loop after {steps} steps and worker {other} is at step {step}: all workers "
            "must take the same number of steps; eq.Sampler sees to that",
            left,
            steps,
        )


class Drift(WorkerError):
    """Workers differ in something that must be the same on all of them."""


class TooFew(WorkerError):
    """Fewer workers are left than the run may go on with."""


class Left(WorkerError):
    """This worker was asked to leave a run that goes on without it."""

    code = 143


class LeftOut(WorkerError):
    """A worker that waits to take part in a run will not be let in: it is full, or it has ended."""


class Refused(LeftOut):
    """A worker that would join a run differs from those in it."""


class NonFinite(WorkerError):
    """The loss or the gradient is NaN or infinite."""


def did_you_mean(name: str, known: list[str]) -> str:
    """A hint for an unknown name: the nearest known one, then all of them."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}known: {', '.join(known)}"


def verdict(error: BaseException) -> tuple[int, str, str]:
    """Exit code, first line, traceback (empty where it would tell the user nothing)."""
    if isinstance(error, UserError):
        return error.code, str(error), ""
    if isinstance(error, WorkerError):
        # A worker that was lost, or a loss that is not finite, is no matter of code; an exception in it is.
        remote = getattr(error, "remote_traceback", "") if type(error) is WorkerError else ""
        return error.code, str(error), remote
    if isinstance(error, MemoryError):
        why = " ".join(str(error).split())
        return UserError.code, f"out of memory{f' ({why})' if why else ''}: take less data or a smaller model", ""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    what = f"{type(error).__name__}: {error}"
    failed = getattr(error, "equipoise_rank", None)
    if failed is not None:
        step = getattr(error, "equipoise_step", None)
        when = f" at step {step}" if step is not None else ""
        return WorkerError.code, f"worker {failed} failed{when}: {what}", trace
    return 1, f"{what} (a fault of Equipoise itself: please report it with what follows)", trace
