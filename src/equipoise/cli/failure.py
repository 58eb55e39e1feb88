"""Errors on the terminal: the first line names the cause, the worker and the step."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from ..core.errors import verdict
from ..core.terminal import say
from ..core.torchrun import rank


def explain(error: BaseException) -> int:
    """Print the error on stderr and return its exit code. Hints and tracebacks follow the first line."""
    code, head, trace = verdict(error)
    # Under torchrun every process reports its own error.
    who = f"process {rank()}: " if rank() else ""
    say(f"equipoise: {who}{head}", error=True)
    lines = []
    run = getattr(error, "equipoise_run", None)
    if code in (1, 3) and run is not None and has_checkpoint(run):
        lines.append(f"to continue from the last checkpoint: {resume_command(run)}")
    if trace:
        lines.append(trace.rstrip())
    if lines:
        print("\n".join(lines), file=sys.stderr, flush=True)
    return code


def has_checkpoint(run: Path) -> bool:
    return any((run / "checkpoints").glob("step-*"))


def resume_command(run: Path) -> str:
    return f"equipoise resume {shlex.quote(str(run))}"
