from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from equipoise.core.errors import UserError
from equipoise.core.vector import ModelSize
from equipoise.sync import MGDSGD
from equipoise.sync.accelerated import etas
from equipoise.topology import Exponential, OnePeer, Ring
from equipoise.wire import BFloat16

from .checks import (
    follows,
    matrix_power,
    mild,
    refuses,
    resumes_from_any_step,
    same_on_processes,
    sends_what_cost_declares,
)
from .quadratic import Problem, error, solve


def test_is_its_equation_and_frozen_within_a_period() -> None:
    graph = Ring().on(8)
    gossip = matrix_power(graph.matrix(), etas("accelerated", graph.rate(), 5))

    def reference(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
        x, path = np.zeros_like(problem.centres), []
        for step in range(steps):
            if (step + 1) % 3 == 0:
                g = np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
                x = gossip @ (x - lr * g)
            path.append(x)
        return path

    follows(MGDSGD(rounds=5), reference, 30, period=3)


def test_bias_shrinks_geometrically_with_the_rounds() -> None:
    problem = mild(8)
    lr = 0.8 / problem.smoothness
    errors = [error(problem, solve(problem, MGDSGD(rounds=r), steps=30, lr=lr)) for r in (3, 6, 12)]
    assert errors[0] > 0.05
    assert all(few > 4 * many for few, many in itertools.pairwise(errors))


def test_momentum_and_adam() -> None:
    problem = mild(5)
    points = solve(problem, MGDSGD(rounds=12), steps=60, lr=0.2 / problem.smoothness, momentum=0.5)
    assert error(problem, points) < 1e-4
    points = solve(problem, MGDSGD(rounds=12), steps=40, lr=0.02, optimizer=torch.optim.Adam)
    assert np.abs(points - points.mean(0)).max() < 1e-4


def test_bad_rounds_and_graphs_are_refused() -> None:
    with pytest.raises(UserError, match="at least 1"):
        MGDSGD(rounds=0)
    refuses(MGDSGD(rounds=1), "disagreement by 1.03", workers=16)
    refuses(MGDSGD(OnePeer()), "same graph in every round")
    refuses(MGDSGD(Exponential()), "symmetric weights")


def test_costs_resumes_and_runs_on_processes() -> None:
    assert MGDSGD().cost(ModelSize(100, 4), 0, 8, True) == (6, 2400)
    sends_what_cost_declares(MGDSGD(rounds=3), period=2)
    sends_what_cost_declares(MGDSGD(gossip="chebyshev"), period=2, sizes=(5,), wire=BFloat16())
    resumes_from_any_step(MGDSGD(rounds=3), period=3)
    same_on_processes(MGDSGD(rounds=3), period=2)
