"""Continue a run from its newest checkpoint or from a given one."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path

from ..checkpoint.store import available, read_manifest
from ..config.recipe import Recipe
from ..core.terminal import say
from ..core.torchrun import first_on_host, rank, under_torchrun
from ..loop.from_recipe import assemble
from ..loop.job import Job
from ..loop.train import prepare, run_job
from .run_recipe import conclude, on_torchrun, traced


def resume(
    recipe: Recipe, folder: Path, step: int | None, *, quiet: bool = False, without_missing: bool = False
) -> int:
    if under_torchrun():
        # torchrun decides the number of workers; the checkpoint may have another one.
        recipe = on_torchrun(recipe.without("workers"))
    job, how = assemble(recipe)
    job.folder, job.quiet, job.without_missing = folder, quiet, without_missing
    prepare(job, True if step is None else step)
    past = beyond(job)
    if past:
        if rank() == 0:
            say(f"{folder} {past}")
        return 0
    with traced(job):
        if first_on_host():
            if step is not None:
                set_aside(folder, step)
            # If this attempt is interrupted, an old result would make the run look finished.
            (folder / "result.json").unlink(missing_ok=True)
            recipe.dump(folder / "recipe.toml")
        job.recipe = recipe.table()
        return conclude(run_job(job, **how))


def beyond(job: Job) -> str:
    """What to say where a checkpoint lies after the end that is asked for, so that nothing would be trained."""
    if job.resume is None or under_torchrun():  # hosts may hold different checkpoints, and must agree first
        return ""
    manifest = read_manifest(job.resume)
    step, epoch = manifest.get("step"), manifest.get("epoch")  # the epoch that it is in, from 0
    if not isinstance(step, int) or not isinstance(epoch, int):
        return ""  # loading it says what is wrong with it
    for name, limit, past in (
        ("steps", job.length.steps, job.length.steps is not None and step > job.length.steps),
        ("epochs", job.length.epochs, job.length.epochs is not None and epoch >= job.length.epochs),
    ):
        if past:
            return f"is at step {step} in epoch {epoch + 1}: to continue, give a greater length than --{name} {limit:g}"
    return ""


def set_aside(folder: Path, step: int) -> None:
    """Rename checkpoints later than `step`: the run no longer leads to them, so no resume may use them."""
    for path in available(folder):
        if int(path.name.removeprefix("step-")) > step:
            aside = path.with_name(f"set-aside-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):  # another host, which shares the folder, was faster
                path.rename(aside)
            print(f"equipoise: note: {path} is now {aside.name}", file=sys.stderr)
