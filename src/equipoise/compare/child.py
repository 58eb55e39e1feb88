"""One run of a comparison, in a process of its own: whatever happens to it, the others go on."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from ..config.recipe import Recipe
from ..loop.from_recipe import assemble


def child(pipe: Connection, folder: Path, recipe: Recipe, resume: bool) -> None:
    """Run the recipe and tell the parent how it ended: an exit code and the first line of what went wrong."""
    import torch

    torch.set_num_threads(1)  # first of all: the parent's OpenMP threads do not exist here
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent asks for an end by SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    code, words = 1, ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = train(folder, recipe, resume)
    except BaseException as error:
        from .failure import verdict

        code, words, trace = verdict(error)
        print(words, trace, sep="\n", file=sys.stderr)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        pipe.send_bytes(pickle.dumps((code, words.splitlines()[0] if words else "")))
        os._exit(0)  # the parent's exit handlers are not ours


def train(folder: Path, recipe: Recipe, resume: bool) -> int:
    from ..loop.train import prepare, run_job

    recipe.dump(folder / "recipe.toml")
    job, how = assemble(recipe)
    job.folder, job.quiet = folder, True
    prepare(job, resume)
    return run_job(job, **how).stopped
