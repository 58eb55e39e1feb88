from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.core.context import Context
from equipoise.core.errors import UserError
from equipoise.sync import MATCHA
from equipoise.sync.matcha import drawn, split
from equipoise.topology import Complete, Edges, Hypercube, OnePeer, Path, Random, Ring, Star, Topology, Torus

from .checks import (
    bias_halves_with_the_step,
    follows,
    learns,
    refuses,
    resumes_from_any_step,
    same_on_processes,
    sends_what_cost_declares,
)
from .quadratic import Problem

# Two triangles and the bridge that holds them together.
BARBELL = Edges(links=[(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (2, 3)])


def links_of(topology: Topology, size: int) -> list[tuple[int, int]]:
    bound = topology.on(size)
    return sorted((a, b) for a in range(size) for b, _ in bound.neighbours(0, a) if a < b)


def laplacian(links: Any, size: int) -> np.ndarray:
    out = np.zeros((size, size))
    for a, b in links:
        out[[a, b], [a, b]] += 1.0
        out[[a, b], [b, a]] -= 1.0
    return out


def lambda_2(probabilities: Any, matchings: Any, size: int) -> float:
    mean = sum(p * laplacian(m, size) for p, m in zip(probabilities, matchings, strict=True))
    return float(np.linalg.eigvalsh(mean)[1])


@pytest.mark.parametrize(
    ("topology", "size", "count"),
    [
        (Ring(), 8, 2),
        (Ring(), 5, 3),
        (Path(), 7, 2),
        (Star(), 6, 5),
        (Torus(), 16, 4),
        (Hypercube(), 8, 3),
        (Complete(), 8, 7),
        (Ring(), 2, 1),
    ],
    ids=repr,
)
def test_matchings_are_disjoint_and_few(topology: Topology, size: int, count: int) -> None:
    links = links_of(topology, size)
    matchings = split(links, size)
    assert len(matchings) == count
    assert sorted(itertools.chain(*matchings)) == links
    for matching in matchings:
        ends = list(itertools.chain(*matching))
        assert len(ends) == len(set(ends))


def test_matchings_of_random_graphs() -> None:
    for seed, size in itertools.product(range(4), (6, 11, 16)):
        links = links_of(Random(probability=0.5, seed=seed), size)
        matchings = split(links, size)
        assert sorted(itertools.chain(*matchings)) == links
        assert all(len(set(itertools.chain(*m))) == 2 * len(m) for m in matchings)
        assert len(matchings) <= max(np.bincount(list(itertools.chain(*links)))) + 2


def test_probabilities_favour_what_holds_the_graph_together() -> None:
    plan = MATCHA(BARBELL, budget=0.4).planned(6)
    assert sum(plan.probabilities) == pytest.approx(0.4 * len(plan.matchings), abs=1e-9)
    assert all(0 <= p <= 1 for p in plan.probabilities)
    bridge = next(m for m, matching in enumerate(plan.matchings) if (2, 3) in matching)
    assert plan.probabilities[bridge] == max(plan.probabilities) > 0.5
    # Nothing on a grid of the allowed probabilities connects the graph better.
    ticks = np.linspace(0, 1, 41)
    count = len(plan.matchings)
    assert count == 3
    best = max(
        lambda_2((a, b, 1.2 - a - b), plan.matchings, 6)
        for a, b in itertools.product(ticks, ticks)
        if 0.2 <= a + b <= 1.2
    )
    assert lambda_2(plan.probabilities, plan.matchings, 6) > best - 0.01


@pytest.mark.parametrize("topology", [Ring(), BARBELL], ids=["ring", "barbell"])
def test_alpha_leaves_the_least_disagreement(topology: Topology) -> None:
    """rho is ||E[W^T W] - J|| over all draws, and no other alpha has a smaller one."""
    plan = MATCHA(topology).planned(6)
    laplacians = [laplacian(m, 6) for m in plan.matchings]

    def rho(alpha: float) -> float:
        expected = np.zeros((6, 6))
        for bits in itertools.product((0, 1), repeat=len(laplacians)):
            probability = np.prod([p if b else 1 - p for b, p in zip(bits, plan.probabilities, strict=True)])
            weights = np.eye(6) - alpha * sum(b * each for b, each in zip(bits, laplacians, strict=True))
            expected += probability * weights.T @ weights
        return float(np.linalg.norm(expected - 1 / 6, 2))

    assert plan.rho == pytest.approx(rho(plan.alpha), abs=1e-9)
    assert plan.rho < 1
    assert all(rho(factor * plan.alpha) > plan.rho for factor in (0.8, 0.99, 1.01, 1.2))


def test_draws_are_unions_of_matchings_within_the_budget() -> None:
    plan = MATCHA(BARBELL, budget=0.4).planned(6)
    used = np.zeros(len(plan.matchings))
    for round in range(2000):
        peers = drawn(plan, 0, round, 6)
        assert all(a in peers[b] for a in range(6) for b in peers[a])
        active = {(a, b) for a in range(6) for b in peers[a] if a < b}
        drawn_matchings = [set(m) <= active for m in plan.matchings]
        assert active == set(itertools.chain(*(m for m, w in zip(plan.matchings, drawn_matchings, strict=True) if w)))
        used += drawn_matchings
    np.testing.assert_allclose(used / 2000, plan.probabilities, atol=0.05)
    assert used.sum() / 2000 == pytest.approx(0.4 * len(plan.matchings), abs=0.06)
    assert drawn(plan, 1, 7, 6) != drawn(plan, 0, 7, 6) or drawn(plan, 1, 8, 6) != drawn(plan, 0, 8, 6)
    everything = MATCHA(Ring(), budget=1.0)
    assert all(len(peers) == 2 for peers in drawn(everything.planned(8), 0, 5, 8))


def matrices(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
    plan, x = MATCHA(Ring(), budget=0.5, seed=3).planned(8), np.zeros_like(problem.centres)
    path = []
    for round in range(steps):
        links = {(a, b) for a, peers in enumerate(drawn(plan, 3, round, 8)) for b in peers if a < b}
        weights = np.eye(8) - plan.alpha * laplacian(links, 8)
        moved = x - lr * np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        x = weights @ moved
        np.testing.assert_allclose(x.mean(0), moved.mean(0), atol=1e-13)
        path.append(x)
    return path


def test_is_its_equations() -> None:
    follows(MATCHA(Ring(), budget=0.5, seed=3), matrices, 24)


def test_bias_halves_with_the_step() -> None:
    bias_halves_with_the_step(MATCHA(), 5, steps=220, lr=0.04, last=160, slack=0.5)


def test_learns_with_momentum_and_adam() -> None:
    learns(MATCHA(), torch.optim.SGD, 0.02, momentum=0.9)
    learns(MATCHA(), torch.optim.Adam, 0.05)


def test_refusals() -> None:
    refuses(MATCHA(OnePeer()), "same graph in every round")
    with pytest.raises(UserError, match="its own weights"):
        MATCHA(Ring(lazy=True))

    def loop(comm: Any) -> None:
        context = Context(comm)
        MATCHA(seed=comm.rank // 2).bind(context)

    with pytest.raises(UserError, match="same budget and seed"):
        eq.spawn(loop, 4, virtual=True)


def test_costs_resumes_and_runs_on_processes() -> None:
    sends_what_cost_declares(MATCHA(), steps=9)
    resumes_from_any_step(MATCHA(), period=2)
    same_on_processes(MATCHA())
