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
from equipoise.sync.accelerated import ENOUGH, FITTED, LITTLE, LONGEST, GossipPlan, paced

DIGITS = 9610  # parameters of the default model


@pytest.mark.parametrize(
    ("round", "chosen"),
    [(0.0, (4, 1)), (0.5, (4, 1)), (0.51, (6, 3)), (1.0, (6, 4)), (99.0, (6, LONGEST))],
)
def test_rounds_are_rare_only_where_those_of_a_step_take_twice_its_time(round: float, chosen: tuple[int, int]) -> None:
    assert paced(4, 6, 1.0, round) == chosen
    assert paced(4, 6, 0.1, round / 10) == chosen


def test_rounds_after_several_steps_leave_less_of_the_disagreement() -> None:
    for graph, size in ((eq.topology.Ring(), 8), (eq.topology.Ring(slack=0.01), 16), (eq.topology.Torus(), 16)):
        for seconds, part in ((0.0, ENOUGH), (99.0, LITTLE)):
            options, _ = eq.sync.DeTAG(graph).suit(size, 1.0, seconds) or ({}, 0)
            left, more = (
                GossipPlan.make(graph.on(size), FITTED, options["rounds"] - fewer, "DeTAG").contraction
                for fewer in (0, 1)
            )
            assert left <= part < more
    plain = eq.sync.DeTAG(gossip="chebyshev")
    assert plain.suit(8, 1.0, 0.0) == ({"rounds": 3}, 1)
    assert plain.suit(8, 1.0, 99.0) == ({"rounds": 3}, LONGEST)


def recipe(cluster: Cluster, folder: Path, **more: object) -> Recipe:
    cluster.save(folder / "cluster.toml")
    return Recipe.from_dict({"cluster": str(folder / "cluster.toml"), "sync": "detag", "batch": 20} | more)


def seconds_per_message(latency: float) -> Cluster:
    """A step of 20 examples takes 0.02 s."""
    return Cluster([1000.0] * 8, Link(latency=latency))


def test_a_recipe_says_what_was_chosen(tmp_path: Path) -> None:
    for latency, rounds, steps in ((0.009, 2, 1), (0.019, 2, 1), (0.021, 3, 3), (0.05, 3, 5), (0.5, 3, 8)):
        found = settled(recipe(seconds_per_message(latency), tmp_path)).resolved()
        assert (found["sync"]["rounds"], found["period"]["steps"]) == (rounds, steps)


def test_bandwidth_counts_for_both_neighbours_and_both_vectors(tmp_path: Path) -> None:
    """On a ring two messages of 2 d floats leave a worker at once."""
    bits = 2 * 2 * 32 * DIGITS / 0.93
    for part, rounds in ((0.99, 2), (1.01, 3)):
        cluster = Cluster([1000.0] * 8, Link(bandwidth=bits / (part * 0.02)))
        assert settled(recipe(cluster, tmp_path)).resolved()["sync"]["rounds"] == rounds


def test_what_the_user_says_stays(tmp_path: Path) -> None:
    slow = seconds_per_message(0.05)
    assert settled(recipe(slow, tmp_path, period=1)).resolved()["sync"]["rounds"] is None
    for sync in ({"name": "detag", "rounds": 2}, {"name": "detag", "frozen": True}, {"name": "d2"}):
        given = recipe(slow, tmp_path, sync=sync)
        assert settled(given) is given
    with pytest.raises(UserError, match="frozen=True"):
        eq.sync.DeTAG(heterogeneity=100.0)


def test_training_in_python_chooses_alike() -> None:
    x = torch.zeros(160, 2)
    for latency, rounds in ((0.0, 2 * 10), (0.05, 3 * 2)):
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
