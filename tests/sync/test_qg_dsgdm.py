from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from equipoise.core.vector import ModelSize
from equipoise.sync import DSGDmN, QGDSGDm
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


def equations(nesterov: bool, local: int) -> Any:
    def matrices(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
        weights, x, m = Ring().on(8).matrix(), np.zeros_like(problem.centres), np.zeros_like(problem.centres)
        path, anchor = [], x
        for step in range(steps):
            g = np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
            x = x - lr * (g + 0.8 * (g + 0.8 * m) if nesterov else g + 0.8 * m)
            if (step + 1) % local == 0:
                x = weights @ x
                m, anchor = 0.7 * m + 0.3 * (anchor - x) / (local * lr), x
            path.append(x)
        return path

    return matrices


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("local", [1, 3])
def test_is_its_equations(nesterov: bool, local: int) -> None:
    follows(QGDSGDm(beta=0.8, mu=0.7, nesterov=nesterov), equations(nesterov, local), 30, period=local)


@pytest.mark.parametrize(("workers", "nesterov"), [(5, True), (4, False)])
def test_rests_where_plain_gossip_does(workers: int, nesterov: bool) -> None:
    """Its momentum is zero there, so it costs no bias; that of DSGDm-N with the same step is five times as large."""
    problem = mild(workers)
    lr = 0.1 / problem.smoothness
    points = solve(problem, QGDSGDm(beta=0.8, mu=0.8, nesterov=nesterov), steps=200, lr=lr)
    expected = resting_point(problem, 1.8 * lr if nesterov else lr)
    assert np.abs(points - expected).max() < 1e-4
    if not nesterov:
        local = solve(problem, DSGDmN(beta=0.8), steps=150, lr=lr)
        assert error(problem, local) > 2.5 * error(problem, points)


def test_bias_halves_with_the_step() -> None:
    bias_halves_with_the_step(QGDSGDm(), 5, steps=200, lr=0.08)


def test_a_learning_rate_of_zero_is_no_direction() -> None:
    """A warm-up from zero: nothing is divided by it."""

    def warm(step: int, together: Any, x: np.ndarray) -> None:
        together.optimizer.param_groups[0]["lr"] = 0.02 * min(step, 5) / 5

    points = solve(Problem.make(4), QGDSGDm(), steps=40, lr=0.0, on_step=warm)
    assert np.isfinite(points).all()
    assert np.abs(points).max() > 0.1


def test_learns_with_adam() -> None:
    learns(QGDSGDm(), torch.optim.SGD, 0.01)
    learns(QGDSGDm(), torch.optim.Adam, 0.05)


def test_costs_resumes_refuses_and_runs_on_processes() -> None:
    assert QGDSGDm().cost(ModelSize(100, 4), 0, 8, True) == (2, 800)
    sends_what_cost_declares(QGDSGDm(OnePeer()), period=2)
    resumes_from_any_step(QGDSGDm(), period=3)
    same_on_processes(QGDSGDm())
    refuses(QGDSGDm(Edges(links=[(0, 1), (1, 2), (2, 0), (0, 2)], directed=True)), "the mean", workers=3)
