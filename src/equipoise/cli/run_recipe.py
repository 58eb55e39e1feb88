"""From a recipe to a finished run; shared by `train` and `resume`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ..config.recipe import Recipe
from ..core.errors import UserError
from ..core.terminal import say
from ..core.torchrun import first_on_host, rank, under_torchrun, world_size
from ..loop.from_recipe import assemble, settled
from ..loop.job import Job
from ..loop.train import Run, prepare, run_job
from .failure import has_checkpoint, resume_command
from .summary import summary


def fresh(recipe: Recipe, stem: Path, *, quiet: bool = False) -> int:
    """A new run in --out, or in the next free folder named after `stem`."""
    return conclude(start(recipe, stem, quiet=quiet))


def start(recipe: Recipe, stem: Path, *, quiet: bool = False) -> Run:
    recipe = on_torchrun(recipe)
    if recipe.settings.get("out") is None and under_torchrun():
        raise UserError("under torchrun every process needs the folder of the run: add --out FOLDER")
    recipe = settled(recipe)
    job, how = assemble(recipe)  # before anything is written: most errors are raised here
    folder = job.folder if job.folder is not None else next_free(stem)
    job.folder, job.quiet = folder, quiet
    prepare(job, False)
    with traced(job):
        recipe = recipe.merged({"out": str(folder)})
        job.recipe = recipe.table()
        if first_on_host():
            recipe.dump(folder / "recipe.toml")
        return run_job(job, **how)


def on_torchrun(recipe: Recipe) -> Recipe:
    """Under torchrun the workers are its processes."""
    if not under_torchrun():
        return recipe
    size, workers = world_size(), recipe.settings.get("workers")
    if workers not in (None, size):
        raise UserError(f"torchrun has started {size} workers but the recipe has {workers}: make them equal")
    return recipe.merged({"workers": size, "virtual": False})


def next_free(stem: Path) -> Path:
    """Create and return `stem-N` with the smallest free N. Creating it reserves it: two runs never share a folder."""
    number = 1
    while True:
        folder = stem.with_name(f"{stem.name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
            if not stem.parent.is_dir():
                raise UserError(f"{stem.parent} is not a folder: choose another with --out") from None
        except OSError as error:
            raise UserError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out") from None


@contextlib.contextmanager
def traced(job: Job) -> Iterator[None]:
    """Attach the run to any error; remove the folder of a run that is refused before its first step."""
    assert job.folder is not None
    try:
        yield
    except Exception as error:
        error.equipoise_run = job.folder  # type: ignore[attr-defined]
        if under_torchrun():
            error.equipoise_rank = rank()  # type: ignore[attr-defined]
        if isinstance(error, UserError) and job.resume is None and rank() == 0:
            discard_unused(job.folder)
        raise


def discard_unused(folder: Path) -> None:
    """Remove the files that `start` created, if no worker has written anything yet."""
    events = folder / "events.jsonl"
    if not events.exists() or events.stat().st_size or has_checkpoint(folder):
        return
    with contextlib.suppress(OSError):
        events.unlink()
        (folder / "recipe.toml").unlink(missing_ok=True)
        folder.rmdir()  # fails if it holds anything else


def conclude(run: Run) -> int:
    """Print the summary of the run; return the exit code."""
    assert run.folder is not None
    if rank() == 0 and run.stopped:
        say(f"stopped at step {run.result['steps']}; to continue: {resume_command(run.folder)}")
    elif rank() == 0:
        summary(run.result, run.folder)
    return run.stopped
