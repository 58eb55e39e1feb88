from __future__ import annotations

import numpy as np
import pytest
import torch

from equipoise.core.vector import ModelSize
from equipoise.sync import DPSGD, DSGDmN
from equipoise.topology import Edges, OnePeer, Ring

from .checks import (
    bias_halves_with_the_step,
    follows,
    learns,
    mild,
    refuses,
    resting_point,
    resumes_from_any_step,
    same_on_processes,
    sends_what_cost_declares,
)
from .quadratic import Problem, error, solve


def matrices(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
    weights, x, m = Ring().on(8).matrix(), np.zeros_like(problem.centres), np.zeros_like(problem.centres)
    path = []
    for _ in range(steps):
        g = np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        m = 0.5 * m + g
        x = weights @ (x - lr * (g + 0.5 * m))
        path.append(x)
    return path


def test_is_its_equations() -> None:
    follows(DSGDmN(beta=0.5), matrices, 24)


def test_is_the_nesterov_momentum_of_torch() -> None:
    """The same numbers as an optimizer with local Nesterov momentum and plain gossip."""
    problem = Problem.make(5)
    own = solve(problem, DSGDmN(), steps=30, lr=0.01)
    torchs = solve(problem, DPSGD(), steps=30, lr=0.01, momentum=0.9, nesterov=True)
    np.testing.assert_allclose(own, torchs, atol=1e-14)


@pytest.mark.parametrize("workers", [4, 5])
def test_rests_where_gossip_with_the_longer_step_does(workers: int) -> None:
    problem = mild(workers)
    lr = 0.02 / problem.smoothness
    points = solve(problem, DSGDmN(), steps=250, lr=lr)
    expected = resting_point(problem, lr / (1 - 0.9))
    assert np.abs(points - expected).max() < 1e-4
    assert error(problem, points) > 0.02


def test_bias_halves_with_the_step() -> None:
    bias_halves_with_the_step(DSGDmN(), 5, steps=150, lr=0.01)


def test_learns_with_momentum_and_adam() -> None:
    learns(DSGDmN(), torch.optim.SGD, 0.002, momentum=0.5)
    learns(DSGDmN(), torch.optim.Adam, 0.05)


def test_costs_resumes_refuses_and_runs_on_processes() -> None:
    assert DSGDmN().cost(ModelSize(100, 4), 0, 8, True) == (2, 800)
    sends_what_cost_declares(DSGDmN(OnePeer()), period=2)
    resumes_from_any_step(DSGDmN(), period=2)
    same_on_processes(DSGDmN())
    refuses(DSGDmN(Edges(links=[(0, 1), (1, 2), (2, 0), (0, 2)], directed=True)), "the mean", workers=3)
