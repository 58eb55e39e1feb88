"""What an error looks like at the terminal: its first line is the cause, the worker and the step."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from pathlib import Path

from ..errors import UserError, WorkerError


def rank() -> int:
    """Of this process under torchrun; 0 elsewhere."""
    return int(os.environ["RANK"]) if "RANK" in os.environ and "WORLD_SIZE" in os.environ else 0


def explain(error: BaseException) -> int:
    """Print the error on stderr; the exit code it asks for. Hints and tracebacks follow the first line."""
    code, head, trace = verdict(error)
    # Processes of torchrun fail each on its own, and each knows only of itself.
    who = f"process {rank()}: " if rank() else ""
    lines = [f"equipoise: {who}{head}"]
    run = getattr(error, "equipoise_run", None)
    if code in (1, 3) and run is not None and has_checkpoint(run):
        lines.append(f"go on from its last checkpoint with: {resume_command(run)}")
    if trace:
        lines.append(trace.rstrip())
    print("\n".join(lines), file=sys.stderr, flush=True)
    return code


def verdict(error: BaseException) -> tuple[int, str, str]:
    """Exit code, first line, traceback (empty where it would tell the user nothing)."""
    if isinstance(error, UserError):
        return error.code, str(error), ""
    if isinstance(error, WorkerError):
        # A worker that was lost, or a loss that is not finite, is no matter of code; an exception in it is.
        remote = getattr(error, "remote_traceback", "") if type(error) is WorkerError else ""
        return error.code, str(error), remote
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    what = f"{type(error).__name__}: {error}"
    failed = getattr(error, "equipoise_rank", None)
    if failed is not None:
        step = getattr(error, "equipoise_step", None)
        when = f" at step {step}" if step is not None else ""
        return WorkerError.code, f"worker {failed} failed{when}: {what}", trace
    return 1, f"{what} (a fault of Equipoise itself: please report it with what follows)", trace


def has_checkpoint(run: Path) -> bool:
    return any((run / "checkpoints").glob("step-*"))


def resume_command(run: Path) -> str:
    return f"equipoise resume {shlex.quote(str(run))}"
