from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.core.errors import UserError
from equipoise.core.vector import ModelSize
from equipoise.sync import EDM
from equipoise.topology import Exponential, Hypercube, OnePeer, Ring

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


def matrices(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
    """The form of the paper: phi = psi + x - psi before."""
    weights, x, m = Ring(lazy=True).on(8).matrix(), np.zeros_like(problem.centres), np.zeros_like(problem.centres)
    path, before = [], x
    for _ in range(steps):
        m = 0.7 * m + 0.3 * np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        psi = x - lr * m
        x, before = weights @ (psi + x - before), psi
        path.append(x)
    return path


def test_is_its_equations() -> None:
    follows(EDM(beta=0.7), matrices, 24)


@pytest.mark.parametrize("workers", [4, 5])
def test_exact(workers: int) -> None:
    converges_to_the_optimum(EDM(beta=0.8), workers, steps=220, lr=0.8)


def test_exact_with_the_default_momentum_and_one_more_in_the_optimizer() -> None:
    converges_to_the_optimum(EDM(), 5, steps=420, lr=0.8)
    converges_to_the_optimum(EDM(beta=0.5), 4, steps=220, lr=0.2, momentum=0.5)


def test_exact_when_the_step_size_changes() -> None:
    problem = mild(5)

    def halve(step: int, together: Any, x: np.ndarray) -> None:
        if step == 15:
            together.optimizer.param_groups[0]["lr"] /= 2

    points = solve(problem, EDM(beta=0.5), steps=130, lr=0.8 / problem.smoothness, on_step=halve)
    assert error(problem, points) < 1e-8


def test_graphs_at_the_limit_are_made_lazy_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    problem = mild(8)
    refuses(EDM(Hypercube(), lazy="never"), "eigenvalue -0.500.*lazy=True")
    refuses(EDM(Ring(), lazy="never"), "above -1/3.*eigenvalue -0.333.*lazy=True")
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        points = solve(problem, EDM(Hypercube(), beta=0.5), steps=130, lr=0.8 / problem.smoothness)
    assert error(problem, points) < 1e-8
    assert len(caplog.messages) == 1, "said once, by worker 0"


def test_graphs_and_periods_it_cannot_use_are_refused() -> None:
    refuses(EDM(OnePeer()), "same graph in every round")
    refuses(EDM(Exponential()), "symmetric weights")
    with pytest.raises(UserError, match="every step"):
        solve(Problem.make(4), EDM(), steps=1, lr=0.1, period=2)


def test_adam_agrees_on_one_model() -> None:
    problem = Problem.make(5)
    points = solve(problem, EDM(), steps=150, lr=0.02, optimizer=torch.optim.Adam)
    assert np.abs(points - points.mean(0)).max() < 0.1
    assert np.abs(points.mean(0) - problem.optimum).max() < 1.0


def test_costs_resumes_and_runs_on_processes() -> None:
    assert EDM().cost(ModelSize(100, 4), 0, 8, True) == (2, 800)
    sends_what_cost_declares(EDM())
    resumes_from_any_step(EDM())
    same_on_processes(EDM())
