from __future__ import annotations

import numpy as np
import torch

from equipoise.sync import PeriodicAverage, SlowMo

from .checks import resumes_from_any_step, same_on_processes, sends_what_cost_declares
from .quadratic import Problem, error, solve


def by_hand(problem: Problem, lr: float, period: int, steps: int, beta: float, alpha: float) -> np.ndarray:
    x = np.zeros_like(problem.centres)
    z, u = x[0].copy(), np.zeros(x.shape[1])
    for step in range(1, steps + 1):
        x = x - lr * np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        if step % period == 0:
            u = beta * u + (z - x.mean(0)) / lr
            z = z - alpha * lr * u
            x = np.tile(z, (len(x), 1))
    return x


def test_is_its_equations() -> None:
    problem = Problem.make(4)
    for beta, alpha in ((0.5, 1.0), (0.8, 0.6)):
        points = solve(problem, SlowMo(beta=beta, alpha=alpha), steps=14, lr=0.05, period=4)
        np.testing.assert_allclose(points, by_hand(problem, 0.05, 4, 14, beta, alpha), atol=1e-12)


def test_without_momentum_it_is_the_periodic_average() -> None:
    problem = Problem.make(4)
    slow, plain = (solve(problem, s, steps=11, lr=0.05, period=3) for s in (SlowMo(beta=0.0), PeriodicAverage()))
    np.testing.assert_allclose(slow, plain, rtol=1e-12, atol=1e-13)


def test_speeds_up_a_slow_problem() -> None:
    problem = Problem.make(4)
    errors = [
        error(problem, solve(problem, s, steps=60, lr=0.01, period=1)) for s in (SlowMo(beta=0.7), PeriodicAverage())
    ]
    assert errors[0] < 0.3 * errors[1]


def test_a_learning_rate_of_zero_moves_no_worker() -> None:
    points = solve(Problem.make(2), SlowMo(), steps=4, lr=0.0, period=2)
    assert np.array_equal(points, np.zeros_like(points))


def test_costs_resumes_and_runs_on_processes() -> None:
    sends_what_cost_declares(SlowMo(), period=2, sizes=(2, 5))
    resumes_from_any_step(SlowMo(state="reset"), period=3)
    resumes_from_any_step(SlowMo(state="average"), period=3)
    same_on_processes(SlowMo(), period=2)
    points = solve(Problem.make(3), SlowMo(), steps=12, lr=0.05, period=3, optimizer=torch.optim.AdamW)
    assert np.abs(points - points[0]).max() == 0.0
