"""Rounds and period from the links of a described cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.config.recipe import Recipe
from equipoise.core.errors import UserError
from equipoise.loop.from_recipe import settled
from equipoise.simulate.cluster import Cluster, Link
from equipoise.sync.accelerated import paced

DIGITS = 9610  # parameters of the default model


@pytest.mark.parametrize(("round", "period"), [(0.0, 1), (1.0, 1), (2.0, 1), (2.01, 2), (99.0, 2)])
def test_rounds_follow_every_second_step_where_they_take_eight_steps(round: float, period: int) -> None:
    assert paced(4, 1.0, round) == (4, period)
    assert paced(4, 0.1, round / 10) == (4, period)


def recipe(cluster: Cluster, folder: Path, **more: object) -> Recipe:
    cluster.save(folder / "cluster.toml")
    return Recipe.from_dict({"cluster": str(folder / "cluster.toml"), "sync": "detag", "batch": 20} | more)


def seconds_per_message(latency: float) -> Cluster:
    """A step of 20 examples takes 0.02 s."""
    return Cluster([1000.0] * 8, Link(latency=latency))


def test_a_recipe_says_what_was_chosen(tmp_path: Path) -> None:
    for latency, rounds, steps in ((0.009, 2, 1), (0.079, 2, 1), (0.081, 2, 2), (0.5, 2, 2)):
        found = settled(recipe(seconds_per_message(latency), tmp_path)).resolved()
        assert (found["sync"]["rounds"], found["period"]["steps"]) == (rounds, steps)


def test_bandwidth_counts_for_both_neighbours_and_both_vectors(tmp_path: Path) -> None:
    """On a ring two messages of 2 d floats leave a worker at once."""
    bits = 2 * 2 * 32 * DIGITS / 0.93
    for part, steps in ((0.99, 1), (1.01, 2)):
        cluster = Cluster([1000.0] * 8, Link(bandwidth=bits / (part * 0.08)))
        assert settled(recipe(cluster, tmp_path)).resolved()["period"]["steps"] == steps


def test_what_the_user_says_stays(tmp_path: Path) -> None:
    slow = seconds_per_message(0.1)
    assert settled(recipe(slow, tmp_path, period=1)).resolved()["sync"]["rounds"] is None
    for sync in ({"name": "detag", "rounds": 2}, {"name": "detag", "frozen": True}, {"name": "d2"}):
        given = recipe(slow, tmp_path, sync=sync)
        assert settled(given) is given
    with pytest.raises(UserError, match="frozen=True"):
        eq.sync.DeTAG(heterogeneity=100.0)


def test_training_in_python_chooses_alike() -> None:
    x = torch.zeros(160, 2)
    for latency, rounds in ((0.0, 2 * 10), (0.1, 2 * 5)):
        run = eq.train(
            nn.Linear(2, 1),
            nn.MSELoss(),
            (x, x[:, :1]),
            workers=8,
            batch=20,
            steps=10,
            sync=eq.sync.DeTAG(),
            cluster=seconds_per_message(latency),
        )
        assert run.result["rounds"] == rounds
