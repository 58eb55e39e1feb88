"""Every pair of methods that fits together trains and resumes to the same bits; the others are refused in one line.

Checkpoints are kept in memory. Every twelfth recipe also writes them to its folder, and runs on processes.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.checkpoint.store import available
from equipoise.comm.base import Comm
from equipoise.core.errors import UserError
from equipoise.loop import worker as loop
from equipoise.loop.state import put_back
from equipoise.testing.promises import same

from ..contract import group, toy
from . import covering

STEPS, STOP = 6, 3  # most batch rules begin with 32, an epoch of 2 steps: the checkpoint is inside the second one
P = eq.period
PERIODS = {
    "post-local": P.PostLocal(switch=2, steps=2),
    "qsr": P.QSR(base=2),
    "annealed": P.AnnealedPeriod(steps=2, rounds=1.0),
    "total-steps": P.TotalSteps(steps=2),
}
RECIPES = covering.recipes()
SOME = RECIPES[::12]
KEPT = ("params_sha256", "steps", "samples", "rounds", "messages", "bytes", "consensus", "models")


def words(recipe: dict[str, str]) -> str:
    return "+".join(recipe.values())


def settings(recipe: dict[str, str], folder: Path) -> dict[str, Any]:
    """The arguments of `toy.train`."""
    chosen = {axis: toy.make(axis, name, folder) for axis, name in recipe.items()}
    if "topology" in chosen:
        chosen.setdefault("sync", eq.sync.DPSGD())
        chosen["sync"] = dataclasses.replace(chosen["sync"], topology=chosen.pop("topology"))
    if "period" not in recipe and "sync" in chosen and not chosen["sync"].needs().every_step:
        chosen["period"] = eq.period.Every(2)
    chosen["period"] = PERIODS.get(recipe.get("period", ""), chosen.get("period"))  # with rounds in so few steps
    return {"method": chosen.pop("sync", eq.sync.PeriodicAverage()), "steps": STEPS, **chosen}


def train(recipe: dict[str, str], folder: Path, **changes: Any) -> dict[str, Any]:
    return toy.train(**settings(recipe, folder), **changes).result


def test_every_pair_is_in_a_recipe_and_no_recipe_holds_a_refused_one() -> None:
    held = {frozenset(pair) for recipe in RECIPES for pair in itertools.combinations(recipe.items(), 2)}
    assert held >= covering.pairs()
    assert not held & set(covering.refused())


class Memory:
    """The first checkpoint of one worker by its step, in the place of `checkpoint.store.Store`."""

    def __init__(self) -> None:
        self.saved: dict[int, io.BytesIO] = {}

    def save(self, state: dict[str, Any], step: int, *_: Any) -> Path:
        if not self.saved:
            self.saved[step] = io.BytesIO()
            torch.save(state, self.saved[step])
        return Path(f"step-{step}")

    failed = False

    def tell(self, failed: bool) -> None:
        assert not failed

    def wait(self) -> None:
        """Nothing is written in the background."""

    leave = wait


@pytest.fixture
def resumed_in_memory(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Workers of `eq.train` end, and go on from their first checkpoint in new objects; the results of both."""
    ends: list[dict[str, Any]] = []
    make = loop.Worker

    class Twice:
        def __init__(self, job: Any, comm: Comm):
            self.job, self.comm = job, comm

        def run(self) -> Any:
            memory, first = Memory(), make(self.job, self.comm)
            first.store = memory  # type: ignore[assignment]
            end = first.run()[0]
            (step,) = memory.saved
            assert STOP <= step < end["steps"]
            memories[self.comm.rank] = memory
            if self.comm.rank == 0:
                ends.append(end)
            return make(dataclasses.replace(self.job, resume=Path(f"step-{step}")), self.comm).run()

    def load(worker: loop.Worker, path: Path, _: list[int]) -> None:
        saved = memories[worker.comm.rank].saved[int(path.name.removeprefix("step-"))]
        saved.seek(0)
        put_back(worker, torch.load(saved, weights_only=True))

    memories: dict[int, Memory] = {}
    monkeypatch.setattr(loop, "load_worker", load)
    monkeypatch.setattr("equipoise.loop.generations.Worker", Twice)
    return ends


@pytest.mark.parametrize("recipe", RECIPES, ids=words)
def test_trains_and_resumes_to_the_same_bits(
    recipe: dict[str, str], resumed_in_memory: list[dict[str, Any]], tmp_path: Path
) -> None:
    resumed = train(recipe, tmp_path, checkpoint_every=STOP)
    (undisturbed,) = resumed_in_memory
    assert undisturbed["steps"] >= STEPS
    assert math.isfinite(undisturbed["models"]["mean"]["loss"])
    same(resumed, undisturbed, KEPT)


@pytest.mark.parametrize("recipe", SOME, ids=words)
def test_resumes_from_its_folder_to_the_same_bits(recipe: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    undisturbed = train(recipe, tmp_path, out=folder, checkpoint_every=STOP)
    step = int(available(folder)[0].name.removeprefix("step-"))
    assert STOP <= step < undisturbed["steps"]
    same(train(recipe, tmp_path, out=folder, resume=step), undisturbed, KEPT)


@pytest.fixture(scope="module")
def in_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The results of all runs of one group, one after the other."""
    folder = tmp_path_factory.mktemp("processes")
    return group.results({words(recipe): partial(toy.train, **settings(recipe, folder)) for recipe in SOME})


@pytest.mark.parametrize("recipe", SOME, ids=words)
def test_the_same_in_processes(recipe: dict[str, str], in_processes: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    exact = all(toy.make(axis, name, tmp_path).exact for axis, name in recipe.items() if axis != "topology")
    keys = KEPT if exact else ("steps", "rounds", "messages", "bytes")
    same(in_processes[words(recipe)], train(recipe, tmp_path), keys)


@pytest.mark.parametrize(
    ("pair", "why"), covering.refused().items(), ids=lambda x: words(dict(sorted(x))) if len(x) == 2 else None
)
def test_a_pair_that_does_not_fit_is_refused_in_one_line(
    pair: frozenset[covering.Choice], why: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=why) as refusal:
        train(dict(pair), tmp_path)
    assert "\n" not in str(refusal.value)
    assert ": " in str(refusal.value), "the fix comes after a colon"
