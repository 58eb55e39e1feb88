"""The list of runs: one folder each, and the state in which an earlier command left it.

OUT/cluster.toml               a copy of the cluster file, if there is one, so that the results stay interpretable
OUT/NAME/seed-N/               the run of one combination with one seed
OUT/NAME/seed-N/failure.json   why the run failed, if it did
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.recipe import Recipe
from ..core.errors import CheckpointError, UserError
from ..loop.from_recipe import settled
from ..observe.result_file import read_result
from ..simulate.cluster import Cluster
from .grid import Combination

_NOT_NUMERICAL = ("out", "timeout", "tensorboard", "track", "keep", "checkpoint_every", "log_every")  # change no result
_EVALUATIONS = 40  # per run, if that is more than one per epoch


@dataclass
class PlannedRun:
    """One run of the comparison."""

    combination: Combination
    seed: int
    folder: Path
    recipe: Recipe
    state: str = "fresh"  # or half, stopped, done, failed
    failure: str = ""
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.combination.name}, seed {self.seed}"

    def finish(self) -> None:
        self.result = read_result(self.folder)
        self.state = "done"

    def fail(self, reason: str) -> None:
        self.state, self.failure = "failed", reason
        if self.folder.is_dir():
            (self.folder / "failure.json").write_text(json.dumps({"failure": reason}) + "\n")


def plan(combinations: list[Combination], seeds: int, out: Path) -> list[PlannedRun]:
    """All runs, ordered by seed first, so that stopping early still leaves every combination with some seeds."""
    if seeds < 1:
        raise UserError(f"--seeds {seeds}: must be at least 1")
    runs, recipes = [], [with_defaults(suited(one.recipe)) for one in combinations]
    for number in range(seeds):
        for one, recipe in zip(combinations, recipes, strict=True):
            seed = recipe.settings.get("seed", 0) + number
            folder = out / one.slug / f"seed-{seed}"
            runs.append(PlannedRun(one, seed, folder, recipe.merged({"seed": seed, "out": str(folder)})))
    return runs


def suited(recipe: Recipe) -> Recipe:
    """With the rounds and the period that `train` would choose; as it is if it cannot run: its run says why."""
    try:
        return settled(recipe)
    except UserError:
        return recipe


def with_defaults(recipe: Recipe) -> Recipe:
    """Defaults of a comparison: evaluations frequent enough to measure the time to a target."""
    plain = recipe.plain()
    table: dict[str, Any] = {}
    if "evaluate_every" not in recipe.settings:
        table["evaluate_every"] = min(1.0, plain["epochs"] / _EVALUATIONS) if plain["epochs"] is not None else 0.25
    if "keep" not in recipe.settings:
        table["keep"] = 1
    return recipe.merged(table)


def survey(runs: list[PlannedRun]) -> None:
    """Find the runs that are done or half done.

    A combination that cannot be built fails here. A folder that holds a run of a different recipe is refused.
    """
    for run in runs:
        try:
            wanted = run.recipe.flat()
        except UserError as error:
            run.fail(str(error))
            continue
        if not (run.folder / "recipe.toml").is_file():
            if run.folder.is_dir() and any(run.folder.iterdir()):
                raise UserError(f"{run.folder} is not empty and holds no run: choose another folder with --out")
            continue
        refuse_different_recipe(run, Recipe.load(run.folder / "recipe.toml").flat(), wanted)
        with contextlib.suppress(OSError, ValueError):
            run.finish()
            continue
        if any((run.folder / "checkpoints").glob("step-*")):
            run.state = "half"
        else:
            clear(run.folder)


def refuse_different_recipe(run: PlannedRun, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """A finished run may only stand for the recipe it was started with."""
    # keep_cluster has compared the contents of the cluster files; their paths do not matter.
    stored, wanted = ({**flat, "cluster": flat.get("cluster") is not None} for flat in (stored, wanted))
    differing = [
        f"{key}: {stored.get(key, 'not set')} in the folder, {wanted.get(key, 'not set')} now"
        for key in sorted({*stored, *wanted})
        if stored.get(key) != wanted.get(key) and key not in _NOT_NUMERICAL
    ]
    if differing:
        raise CheckpointError(
            f"{run.folder} holds a run of a different recipe: choose another folder with --out\n  "
            + "\n  ".join(differing)
        )


def clear(folder: Path) -> None:
    """Remove the files of a run that left no checkpoint: nothing of it can be used."""
    for name in ("events.jsonl", "result.json", "failure.json", "log.txt"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def keep_cluster(combinations: list[Combination], out: Path) -> list[Combination]:
    """Point all recipes to a copy of the cluster file inside `out`; refuse if `out` holds a different one."""
    files = {one.recipe.plain()["cluster"] for one in combinations}
    if files == {None}:
        return combinations
    if len(files) > 1:
        raise UserError(f"all recipes must share one cluster, but there are {len(files)}: give --cluster FILE")
    source, copy = Path(files.pop()), out / "cluster.toml"
    Cluster.load(source)  # an invalid file fails here once, not in every run
    text = source.read_text(encoding="utf-8")
    if copy.is_file() and copy.read_text(encoding="utf-8") != text:
        raise CheckpointError(f"{copy} differs from {source}: choose another folder with --out")
    copy.write_text(text, encoding="utf-8")
    return [Combination(one.name, one.recipe.merged({"cluster": str(copy)})) for one in combinations]


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Allow one comparison at a time in a folder. Runs inherit the lock and hold it until the last of them ends."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out / ".lock", os.O_WRONLY | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}; choose another folder with --out") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another comparison is running in {out}: wait for it, or choose another --out") from None
        yield
    finally:
        os.close(handle)
