from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.vector import ModelSize
from equipoise.loop.attach import attach
from equipoise.sync import RelaySGD
from equipoise.sync.relay import spanning_tree
from equipoise.topology import Exponential, Hypercube, OnePeer, Path, Random, Ring, Star, Torus
from equipoise.topology.analysis import Key

from .checks import (
    converges_to_the_optimum,
    learns,
    refuses,
    resumes_from_any_step,
    same_on_processes,
    sends_what_cost_declares,
)
from .quadratic import Problem, solve


def tree_of(topology: Any, size: int) -> Any:
    bound = topology.on(size)
    return spanning_tree(Key(bound.identity, bound))


def counted(problem: Problem, links: Any, start: np.ndarray, lr: float, steps: int) -> np.ndarray:
    """The form of the paper: messages carry counts, and x^0 stands for those not heard of yet."""
    n = len(links)
    x = np.tile(start, (n, 1))
    sums = {(i, j): np.zeros_like(start) for i in range(n) for j in links[i]}
    counts = dict.fromkeys(sums, 0)
    for _ in range(steps):
        x = x - lr * np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        old_sums, old_counts = dict(sums), dict(counts)
        for i, j in sums:
            others = [k for k in links[i] if k != j]
            sums[i, j] = x[i] + sum((old_sums[k, i] for k in others), np.zeros_like(start))
            counts[i, j] = 1 + sum(old_counts[k, i] for k in others)
        for i in range(n):
            heard = 1 + sum(counts[j, i] for j in links[i])
            x[i] = (x[i] + sum(sums[j, i] for j in links[i]) + (n - heard) * start) / n
    return x


@pytest.mark.parametrize("topology", [Path(), Ring(), Star(hub=2), Hypercube()], ids=repr)
def test_first_messages_are_the_counts_of_the_paper(topology: Any) -> None:
    problem, start, lr = Problem.make(8), np.full(5, 3.0), 0.05

    def loop(comm: Any, steps: int) -> np.ndarray:
        a, c = torch.from_numpy(problem.matrices[comm.rank]), torch.from_numpy(problem.centres[comm.rank])
        model = nn.Linear(5, 1, bias=False, dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        with attach(model, optimizer, sync=RelaySGD(topology)):
            nn.init.constant_(model.weight, 3.0)  # loaded after binding, as a checkpoint is
            for _ in range(steps):
                optimizer.zero_grad()
                away = model.weight[0] - c
                (0.5 * away @ a @ away).backward()
                optimizer.step()
        return model.weight.detach().numpy()[0].copy()

    for steps in (1, 3, 12):
        points = np.stack(eq.spawn(lambda comm, steps=steps: loop(comm, steps), 8, virtual=True))
        expected = counted(problem, tree_of(topology, 8).links, start, lr, steps)
        np.testing.assert_allclose(points, expected, atol=1e-13)


@pytest.mark.parametrize(("topology", "workers"), [(Path(), 6), (Ring(), 4), (Ring(), 5), (Star(), 5)], ids=repr)
def test_exact(topology: Any, workers: int) -> None:
    converges_to_the_optimum(RelaySGD(topology), workers, steps=150 if workers == 6 else 110, lr=0.5)


def test_exact_with_momentum() -> None:
    converges_to_the_optimum(RelaySGD(), 5, steps=160, lr=0.15, momentum=0.5)


@pytest.mark.parametrize("topology", [Path(), Ring(), Star(hub=3), Torus(), Random()], ids=repr)
def test_trees_span_the_graph(topology: Any) -> None:
    for size in (4, 6, 9):
        tree, bound = tree_of(topology, size), topology.on(size)
        assert sum(map(len, tree.links)) == 2 * (size - 1), size
        for rank, links in enumerate(tree.links):
            assert set(links) <= {peer for peer, _ in bound.neighbours(0, rank)}, size
            assert 1 + sum(links.values()) == size, "every worker is reached through exactly one neighbour"
            assert all(tree.links[peer][rank] == size - behind for peer, behind in links.items()), size


def test_travels_as_its_delay_allows() -> None:
    assert tree_of(Path(), 8).delay == tree_of(Ring(), 8).delay == 1.75
    assert tree_of(Path(), 2).delay == 0
    assert tree_of(Star(), 8).delay == 7 * 6 / 64
    same = Problem(np.tile(np.eye(5), (8, 1, 1)), np.ones((8, 5)))
    points = solve(same, RelaySGD(Path()), steps=250, lr=0.01)
    assert 1 - points.mean() == pytest.approx(np.exp(-250 * 0.01 / 2.75), rel=0.03)


def test_learns_with_adam() -> None:
    learns(RelaySGD(), torch.optim.Adam, 0.05)


def test_graphs_it_cannot_use_are_refused() -> None:
    refuses(RelaySGD(OnePeer()), "same graph in every round")
    refuses(RelaySGD(Exponential()), "symmetric weights")


def test_costs_resumes_and_runs_on_processes() -> None:
    assert RelaySGD(Path()).cost(ModelSize(100, 4), 0, 8, True) == (1, 400)
    assert RelaySGD(Path()).cost(ModelSize(100, 4), 3, 8, True) == (2, 800)
    sends_what_cost_declares(RelaySGD())
    sends_what_cost_declares(RelaySGD(Star()), period=2)
    resumes_from_any_step(RelaySGD(), period=2)
    same_on_processes(RelaySGD())
