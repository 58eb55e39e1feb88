"""Which runs there are to do: a folder each, and what is known of it from before.

OUT/cluster.toml               a copy of the cluster, where one is described: results stay what they mean
OUT/NAME/seed-N/               the run of one combination with one seed
OUT/NAME/seed-N/failure.json   why it failed, if it did
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
from ..simulate.cluster import Cluster
from .grid import Combination

_INCIDENTAL = ("out", "timeout", "tensorboard", "keep", "checkpoint_every", "log_every")  # change no number
_EVALUATIONS = 40  # per run, if that is more than one an epoch


@dataclass
class Task:
    """One run of the comparison."""

    combination: Combination
    seed: int
    folder: Path
    recipe: Recipe
    state: str = "fresh"  # or half, stopped, done, failed
    failure: str = ""
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        return f"{self.combination.name}, seed {self.seed}"

    def finish(self) -> None:
        self.result = json.loads((self.folder / "result.json").read_text())
        self.state = "done"

    def fail(self, why: str) -> None:
        self.state, self.failure = "failed", why
        if self.folder.is_dir():
            (self.folder / "failure.json").write_text(json.dumps({"failure": why}) + "\n")


def plan(combinations: list[Combination], seeds: int, out: Path) -> list[Task]:
    """All runs, by seed and then by combination, so that an early stop leaves something to compare."""
    if seeds < 1:
        raise UserError(f"--seeds {seeds}: at least 1 is needed")
    tasks = []
    for number in range(seeds):
        for one in combinations:
            seed = one.recipe.settings.get("seed", 0) + number
            folder = out / one.slug / f"seed-{seed}"
            recipe = with_defaults(one.recipe).merged({"seed": seed, "out": str(folder)})
            tasks.append(Task(one, seed, folder, recipe))
    return tasks


def with_defaults(recipe: Recipe) -> Recipe:
    """What a comparison wants where nobody says otherwise: evaluations close enough to tell times apart."""
    plain = recipe.plain()
    table: dict[str, Any] = {}
    if "evaluate_every" not in recipe.settings:
        table["evaluate_every"] = min(1.0, plain["epochs"] / _EVALUATIONS) if plain["epochs"] is not None else 0.25
    if "keep" not in recipe.settings:
        table["keep"] = 1
    return recipe.merged(table)


def survey(tasks: list[Task]) -> None:
    """Find what is done and what is half-done. A choice that cannot be built fails here; another recipe is refused."""
    for task in tasks:
        try:
            wanted = task.recipe.flat()
        except UserError as error:
            task.fail(str(error))
            continue
        if not (task.folder / "recipe.toml").is_file():
            if task.folder.is_dir() and any(task.folder.iterdir()):
                raise UserError(f"{task.folder} holds something that is no run: choose another folder with --out")
            continue
        refuse_another(task, Recipe.load(task.folder / "recipe.toml").flat(), wanted)
        with contextlib.suppress(OSError, ValueError):
            task.finish()
            continue
        if any((task.folder / "checkpoints").glob("step-*")):
            task.state = "half"
        else:
            clear(task.folder)


def refuse_another(task: Task, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """A finished run stands for this recipe and no other."""
    # The cluster's contents have been compared; where its copy lies does not matter.
    stored, wanted = ({**flat, "cluster": flat.get("cluster") is not None} for flat in (stored, wanted))
    differing = [
        f"{key}: {stored.get(key, 'not set')} there, {wanted.get(key, 'not set')} now"
        for key in sorted({*stored, *wanted})
        if stored.get(key) != wanted.get(key) and key not in _INCIDENTAL
    ]
    if differing:
        raise CheckpointError(
            f"{task.folder} holds a run of another recipe: choose another folder with --out\n  "
            + "\n  ".join(differing)
        )


def clear(folder: Path) -> None:
    """Remove what a run without a checkpoint has left: nothing of it can be used."""
    for name in ("events.jsonl", "result.json", "failure.json", "log.txt"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def keep_cluster(combinations: list[Combination], out: Path) -> list[Combination]:
    """Let all recipes refer to a copy of the cluster inside `out`; refuse if another one lies there."""
    files = {one.recipe.plain()["cluster"] for one in combinations}
    if files == {None}:
        return combinations
    if len(files) > 1:
        raise UserError(f"one cluster for all, to compare by its time; there are {len(files)}: give --cluster FILE")
    source, copy = Path(files.pop()), out / "cluster.toml"
    Cluster.load(source)  # refused here, once
    text = source.read_text(encoding="utf-8")
    if copy.is_file() and copy.read_text(encoding="utf-8") != text:
        raise CheckpointError(f"{copy} describes another cluster than {source}: choose another folder with --out")
    copy.write_text(text, encoding="utf-8")
    return [Combination(one.name, one.recipe.merged({"cluster": str(copy)})) for one in combinations]


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """One comparison at a time in a folder. Runs inherit the lock: they hold it as long as one of them lives."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out / ".lock", os.O_WRONLY | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}; choose another folder with --out") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another comparison is at work in {out}: wait for it, or choose another --out") from None
        yield
    finally:
        os.close(handle)
