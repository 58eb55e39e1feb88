from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from equipoise.core.vector import ModelSize
from equipoise.sync import KGT, PeriodicAverage
from equipoise.topology import Edges, Exponential, OnePeer, Ring
from equipoise.wire import BFloat16

from .checks import (
    converges_to_the_optimum,
    follows,
    mild,
    refuses,
    resumes_from_any_step,
    same_on_processes,
    sends_what_cost_declares,
)
from .quadratic import Problem, error, solve


def equations(local: int) -> Any:
    """The form of the paper: z from the displacement of the model."""

    def matrices(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
        weights, x, c = Ring().on(8).matrix(), np.zeros_like(problem.centres), np.zeros_like(problem.centres)
        path, start = [], x
        for step in range(steps):
            x = x - lr * (np.einsum("nij,nj->ni", problem.matrices, x - problem.centres) + c)
            if (step + 1) % local == 0:
                z = (start - x) / (local * lr)
                c = c - z + weights @ z
                x = start = weights @ (start - local * lr * z)
            path.append(x)
        return path

    return matrices


@pytest.mark.parametrize("local", [1, 4])
def test_is_its_equations(local: int) -> None:
    follows(KGT(), equations(local), 24, period=local)


@pytest.mark.parametrize(
    ("workers", "local", "steps", "lr"), [(4, 1, 75, 0.4), (5, 1, 75, 0.4), (4, 2, 150, 0.2), (5, 4, 300, 0.1)]
)
def test_exact(workers: int, local: int, steps: int, lr: float) -> None:
    converges_to_the_optimum(KGT(), workers, steps=steps, lr=lr, period=local)


def test_exact_with_momentum_and_on_directed_graphs() -> None:
    converges_to_the_optimum(KGT(), 5, steps=200, lr=0.1, period=2, momentum=0.5)
    converges_to_the_optimum(KGT(Exponential()), 6, steps=160, lr=0.3, period=2)


def test_local_steps_without_correction_are_not_exact() -> None:
    problem = mild(5)
    points = solve(problem, PeriodicAverage(), steps=160, lr=0.2 / problem.smoothness, period=4)
    assert error(problem, points) > 1e-3


def test_adam_reaches_the_optimum() -> None:
    """g + c vanishes there, whatever scales it."""
    problem = Problem.make(5)

    def decay(step: int, together: Any, x: np.ndarray) -> None:
        together.optimizer.param_groups[0]["lr"] *= 0.98

    points = solve(problem, KGT(), steps=240, lr=0.1, period=2, optimizer=torch.optim.Adam, on_step=decay)
    assert error(problem, points) < 0.05


def test_corrections_sum_to_zero() -> None:
    means, sizes = [], []

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        with together.comm.uncounted():
            means.append(together.sync.correction_mean)
        sizes.append(float(together.sync.correction.norm()))

    solve(Problem.make(5), KGT(), steps=40, lr=0.02, period=3, on_step=on_step)
    assert max(means) < 1e-13
    assert max(sizes) > 0.5


def test_costs_resumes_refuses_and_runs_on_processes() -> None:
    assert KGT().cost(ModelSize(100, 4), 0, 8, True) == (2, 1600)
    sends_what_cost_declares(KGT(), period=3)
    sends_what_cost_declares(KGT(OnePeer()), sizes=(5,), wire=BFloat16())
    resumes_from_any_step(KGT(), period=3)
    same_on_processes(KGT(), period=2)
    refuses(KGT(Edges(links=[(0, 1), (1, 2), (2, 0), (0, 2)], directed=True)), "the mean", workers=3)
