"""Every pair of methods that fits together trains and resumes to the same bits; the others are refused in one line."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import pytest

import equipoise as eq
from equipoise.checkpoint.store import available
from equipoise.core.errors import UserError

from ..contract import toy
from . import covering

STEPS, STOP = 10, 5  # an epoch of batches of 8 is 7 steps: a checkpoint in the first, the end in the second
RECIPES = covering.recipes()
KEPT = ("params_sha256", "steps", "samples", "rounds", "messages", "bytes", "consensus", "models")


def words(recipe: dict[str, str]) -> str:
    return "+".join(recipe.values())


def train(recipe: dict[str, str], folder: Path, **changes: Any) -> dict[str, Any]:
    chosen = {axis: toy.make(axis, name, folder) for axis, name in recipe.items()}
    if "topology" in chosen:
        chosen.setdefault("sync", eq.sync.DPSGD())
        chosen["sync"] = dataclasses.replace(chosen["sync"], topology=chosen.pop("topology"))
    if "period" not in recipe and "sync" in chosen and not chosen["sync"].needs().every_step:
        chosen["period"] = eq.period.Every(2)
    sync = chosen.pop("sync", eq.sync.PeriodicAverage())
    return toy.train(sync, **{"steps": STEPS, **chosen, **changes}).result


def test_every_pair_is_in_a_recipe_and_no_recipe_holds_a_refused_one() -> None:
    held = {frozenset(pair) for recipe in RECIPES for pair in itertools.combinations(recipe.items(), 2)}
    assert held == covering.pairs()
    assert not held & set(covering.refused())


@pytest.mark.parametrize("recipe", RECIPES, ids=words)
def test_trains_and_resumes_to_the_same_bits(recipe: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    undisturbed = train(recipe, tmp_path, out=folder, checkpoint_every=STOP)
    assert undisturbed["steps"] >= STEPS
    assert math.isfinite(undisturbed["models"]["mean"]["loss"])
    first = available(folder)[0].name
    step = int(first.removeprefix("step-"))
    assert STOP <= step < undisturbed["steps"]
    resumed = train(recipe, tmp_path, out=folder, resume=step)
    for key in KEPT:
        assert resumed[key] == undisturbed[key], key


@pytest.mark.parametrize("recipe", RECIPES[::12], ids=words)
def test_the_same_in_processes(recipe: dict[str, str], tmp_path: Path) -> None:
    exact = all(toy.make(axis, name, tmp_path).exact for axis, name in recipe.items() if axis != "topology")
    virtual, processes = train(recipe, tmp_path), train(recipe, tmp_path, virtual=False)
    for key in KEPT if exact else ("steps", "rounds", "messages", "bytes"):
        assert processes[key] == virtual[key], key


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
