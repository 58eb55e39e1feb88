from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from equipoise.core.vector import ModelSize
from equipoise.sync import DeFacto
from equipoise.sync.defacto import distinct_eigenvalues, tree_sweeps
from equipoise.topology import Exponential, Hypercube, OnePeer, Path, Random, Ring, Star, Topology

from .checks import (
    converges_to_the_optimum,
    refuses,
    resumes_from_any_step,
    same_on_processes,
    sends_what_cost_declares,
)
from .quadratic import Problem, solve

GRAPHS = [(Ring(), 8), (Ring(), 5), (Path(), 8), (Star(), 8), (Hypercube(), 8), (Random(), 12), (Ring(), 2)]


def tree_product(graph: Topology) -> np.ndarray:
    product = np.eye(graph.size)
    for sweep in tree_sweeps(graph):
        factor = np.diag([wires.keeps for wires in sweep])
        for rank, wires in enumerate(sweep):
            for peer, weight in wires.sources:
                assert rank in sweep[peer].targets
                factor[rank, peer] = weight
        assert (factor[graph.matrix() == 0] == 0).all(), "only along the edges of the graph"
        product = factor @ product
    return product


@pytest.mark.parametrize(("topology", "size"), GRAPHS, ids=repr)
def test_factors_multiply_to_the_mean(topology: Topology, size: int) -> None:
    graph = topology.on(size)
    assert np.abs(tree_product(graph) - 1 / size).max() < 3e-15
    product = np.eye(size)
    for mu in distinct_eigenvalues(graph):
        product = (graph.matrix() - mu * np.eye(size)) / (1 - mu) @ product
    assert np.abs(product - 1 / size).max() < 1e-14


def test_numbers_of_rounds() -> None:
    """Spectral: the diameter on regular graphs. Tree: twice the radius."""
    for topology, size, spectral, tree in (
        (Ring(), 8, 4, 8),
        (Ring(), 5, 2, 4),
        (Path(), 8, 7, 8),
        (Star(), 8, 2, 2),
        (Hypercube(), 8, 3, 6),
    ):
        assert len(distinct_eigenvalues(topology.on(size))) == spectral
        assert len(tree_sweeps(topology.on(size))) == tree


@pytest.mark.parametrize("size", [8, 16, 32, 64])
def test_leja_order_keeps_single_precision(size: int) -> None:
    graph = Ring().on(size)
    weights, product = graph.matrix().astype(np.float32), np.eye(size, dtype=np.float32)
    for mu in distinct_eigenvalues(graph):
        product = ((weights @ product - np.float32(mu) * product) / np.float32(1 - mu)).astype(np.float32)
    assert np.abs(product - 1 / size).max() < 3e-5


@pytest.mark.parametrize("factors", ["spectral", "tree"])
@pytest.mark.parametrize(("workers", "momentum"), [(5, 0.0), (8, 0.7)])
def test_is_centralised_sgd(factors: str, workers: int, momentum: float) -> None:
    """The same points as one worker that sees all gradients of a period, at every step, on every worker."""
    problem = Problem.make(workers)
    lr, period, steps = 0.2 / problem.smoothness, 3, 30
    centre, velocity, path = np.zeros(5), np.zeros(5), []
    for step in range(steps):
        if (step + 1) % period == 0:
            g = np.einsum("nij,nj->i", problem.matrices, centre - problem.centres) / workers
            velocity = momentum * velocity + g
            centre = centre - lr * velocity
        path.append(centre)

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        assert np.abs(x - path[step]).max() < 1e-12

    solve(problem, DeFacto(factors=factors), steps=steps, lr=lr, period=period, momentum=momentum, on_step=on_step)


@pytest.mark.parametrize("factors", ["spectral", "tree"])
@pytest.mark.parametrize("workers", [4, 5])
def test_exact(factors: str, workers: int) -> None:
    converges_to_the_optimum(DeFacto(factors=factors), workers, steps=60, lr=1.0, period=2)


def test_adam_agrees_on_one_model() -> None:
    points = solve(Problem.make(5), DeFacto(), steps=100, lr=0.02, optimizer=torch.optim.Adam)
    assert np.abs(points - points.mean(0)).max() < 1e-12
    assert np.abs(points).max() > 0.1


def test_graphs_it_cannot_use_are_refused() -> None:
    refuses(DeFacto(OnePeer()), "same graph in every round")
    refuses(DeFacto(Exponential(), factors="tree"), "symmetric weights")


def test_costs_resumes_and_runs_on_processes() -> None:
    assert DeFacto().cost(ModelSize(100, 4), 0, 8, True) == (8, 3200)
    assert DeFacto().cost(ModelSize(100, 4), 0, 8, False) == (0, 0)
    assert DeFacto(Random()).cost(ModelSize(100, 4), 0, 40, True) == DeFacto(Random(), factors="tree").cost(
        ModelSize(100, 4), 0, 40, True
    )
    for factors in ("spectral", "tree"):
        sends_what_cost_declares(DeFacto(factors=factors), period=2)
        resumes_from_any_step(DeFacto(factors=factors), period=3)
        same_on_processes(DeFacto(factors=factors), period=2)
