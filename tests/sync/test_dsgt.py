from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.core.vector import ModelSize
from equipoise.sync import DSGT
from equipoise.topology import Exponential, OnePeer, Ring

from .checks import (
    converges_to_the_optimum,
    follows,
    resumes_from_any_step,
    same_on_processes,
    sends_what_cost_declares,
)
from .quadratic import Problem, error, solve


def matrices(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
    weights, x = Ring().on(len(problem.centres)).matrix(), np.zeros_like(problem.centres)
    g = y = np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
    path = []
    for _ in range(steps):
        x = weights @ (x - lr * y)
        path.append(x)
        new = np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        y, g = weights @ y + new - g, new
    return path


def test_is_its_equations() -> None:
    follows(DSGT(), matrices, 24)


@pytest.mark.parametrize("workers", [4, 5])
def test_exact(workers: int) -> None:
    converges_to_the_optimum(DSGT(), workers, steps=230, lr=0.22)


def test_exact_with_momentum() -> None:
    converges_to_the_optimum(DSGT(), 5, steps=120, lr=0.15, momentum=0.5)


@pytest.mark.parametrize("topology", [OnePeer(), Exponential()], ids=repr)
def test_exact_on_graphs_that_change_or_are_directed(topology: Any) -> None:
    converges_to_the_optimum(DSGT(topology), 4, steps=160, lr=0.2)


def test_adam_reaches_the_optimum() -> None:
    """The tracker vanishes there, whatever scales it."""
    problem = Problem.make(5)

    def decay(step: int, together: Any, x: np.ndarray) -> None:
        together.optimizer.param_groups[0]["lr"] *= 0.98

    points = solve(problem, DSGT(), steps=200, lr=0.1, optimizer=torch.optim.Adam, on_step=decay)
    assert error(problem, points) < 0.02


def test_tracker_keeps_the_mean_of_the_gradients() -> None:
    gaps = []

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        with together.comm.uncounted():
            gaps.append(together.sync.tracker_gap)
            gradient = together.comm.mean(together.sync.gradient_before.clone())
            assert gradient.norm() > 1e-3

    solve(Problem.make(5), DSGT(), steps=30, lr=0.02, on_step=on_step)
    assert max(gaps) < 1e-13


def test_model_and_tracker_are_one_message_without_packing() -> None:
    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        sync, flat = together.sync, together.flat
        assert flat.x.data_ptr() == sync.joint.buffer.data_ptr()
        assert together.model.weight.data_ptr() == sync.joint.buffer.data_ptr()
        assert together.comm.ledger.messages == 2 * (step + 1)

    solve(Problem.make(4), DSGT(), steps=3, lr=0.02, on_step=on_step)


def test_health_in_the_result() -> None:
    model = lambda: torch.nn.Linear(4, 2)  # noqa: E731
    data = torch.randn(64, 4), torch.randint(2, (64,))
    run = eq.train(
        model,
        torch.nn.CrossEntropyLoss(),
        data,
        sync=DSGT(),
        workers=4,
        virtual=True,
        batch=4,
        steps=6,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )
    assert run.result["health"]["tracker_gap"] < 1e-6
    assert run.result["health"]["spectral_gap"] == pytest.approx(2 / 3)


def test_costs_resumes_and_runs_on_processes() -> None:
    assert DSGT().cost(ModelSize(100, 4), 0, 8, True) == (2, 1600)
    sends_what_cost_declares(DSGT())
    resumes_from_any_step(DSGT())
    resumes_from_any_step(DSGT(OnePeer()))
    same_on_processes(DSGT())
