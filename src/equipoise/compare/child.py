"""One run of a comparison in a process of its own, so that a crash cannot affect the other runs."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from ..config.recipe import Recipe
from ..core.errors import verdict
from ..loop.from_recipe import assemble


def child(pipe: Connection, folder: Path, recipe: Recipe, resume: bool) -> None:
    """Run the recipe, then send the parent an exit code and the first line of the error, if there was one."""
    import torch

    torch.set_num_threads(1)  # before any other call: the parent's OpenMP threads do not exist after a fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides and sends SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    code, message = 1, ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = train(folder, recipe, resume)
    except BaseException as error:
        code, message, trace = verdict(error)
        print(message, trace, sep="\n", file=sys.stderr)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        pipe.send_bytes(pickle.dumps((code, message.splitlines()[0] if message else "")))
        os._exit(0)  # skips the exit handlers inherited from the parent


def train(folder: Path, recipe: Recipe, resume: bool) -> int:
    from ..loop.train import prepare, run_job

    recipe.dump(folder / "recipe.toml")
    job, how = assemble(recipe)
    job.folder, job.quiet = folder, True
    prepare(job, resume)
    return run_job(job, **how).stopped
