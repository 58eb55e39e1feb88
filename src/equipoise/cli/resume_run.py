"""Continue a run from its newest checkpoint or from a given one."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path

from ..checkpoint.store import available
from ..config.recipe import Recipe
from ..core.torchrun import first_on_host, under_torchrun
from ..loop.from_recipe import assemble
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
    with traced(job):
        if first_on_host():
            if step is not None:
                set_aside(folder, step)
            # If this attempt is interrupted, an old result would make the run look finished.
            (folder / "result.json").unlink(missing_ok=True)
            recipe.dump(folder / "recipe.toml")
        job.recipe = recipe.table()
        return conclude(run_job(job, **how))


def set_aside(folder: Path, step: int) -> None:
    """Rename checkpoints later than `step`: the run no longer leads to them, so no resume may use them."""
    for path in available(folder):
        if int(path.name.removeprefix("step-")) > step:
            aside = path.with_name(f"set-aside-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):  # another host, which shares the folder, was faster
                path.rename(aside)
            print(f"equipoise: note: {path} is now {aside.name}", file=sys.stderr)
