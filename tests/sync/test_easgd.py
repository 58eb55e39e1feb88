"""EASGD and EAMSGD."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.context import Context
from equipoise.core.vector import Flat, ModelSize
from equipoise.sync import EAMSGD, EASGD, NoSync

from .checks import Layers, follows, resumes_from_any_step, same_on_processes, sends_what_cost_declares, toy_sha
from .quadratic import Problem, solve


def recursion(pull: float, delta: float = 0.0, period: int = 1) -> Any:
    """The paper's equations on matrices."""

    def reference(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
        x, path = np.zeros_like(problem.centres), []
        centre, v = np.zeros(x.shape[1]), np.zeros_like(x)
        for step in range(1, steps + 1):
            g = np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
            v = delta * v + g
            x = x - lr * (g + delta * v)
            if step % period == 0:
                mean, alpha = x.mean(0), pull / len(x)
                x, centre = x - alpha * (x - centre), centre + pull * (mean - centre)
            path.append(x)
        return path

    return reference


def test_is_its_equation() -> None:
    follows(EASGD(pull=0.6), recursion(0.6, period=3), 20, period=3)
    follows(EAMSGD(pull=0.6, delta=0.7), recursion(0.6, 0.7, period=2), 20, period=2)


@pytest.mark.parametrize("pull", [0.1, 0.9, 1.0])
def test_a_round_conserves_the_sum_of_workers_and_centre(pull: float) -> None:
    models = np.random.default_rng(1).standard_normal((5, 4))

    def loop(comm: Comm) -> tuple[np.ndarray, np.ndarray]:
        flat = Flat(Layers((4,)))
        bound = EASGD(pull=pull).bind(Context(comm, flat=flat))
        bound.before_step(flat.x, None)
        bound.centre_model = torch.arange(4.0, dtype=torch.float64)
        flat.x.copy_(torch.from_numpy(models[comm.rank]))
        for _ in range(7):
            bound.after_step(flat.x)
        return flat.x.numpy(), bound.centre().numpy()

    x, centres = map(np.stack, zip(*eq.spawn(loop, 5, virtual=True), strict=True))
    assert (centres == centres[0]).all()
    np.testing.assert_allclose(x.sum(0) + centres[0], models.sum(0) + np.arange(4), atol=1e-13)
    # Differences shrink by 1 - pull / N a round.
    np.testing.assert_allclose(x[0] - x[1], (1 - pull / 5) ** 7 * (models[0] - models[1]), atol=1e-13)


def test_without_a_pull_workers_are_alone() -> None:
    assert toy_sha(EASGD(pull=0.0), period=2) == toy_sha(NoSync(), period=1)
    assert toy_sha(EASGD(pull=0.5), period=2) != toy_sha(NoSync(), period=1)


def test_momentum_in_the_method_is_momentum_in_the_optimizer() -> None:
    problem = Problem.make(4)
    inside = solve(problem, EAMSGD(pull=0.5, delta=0.8), steps=12, lr=0.05, period=3)
    beside = solve(problem, EASGD(pull=0.5), steps=12, lr=0.05, period=3, momentum=0.8, nesterov=True)
    np.testing.assert_allclose(inside, beside, atol=1e-12)


def test_centre_is_evaluated_and_goes_to_the_optimum_of_equal_workers() -> None:
    wild = Problem.make(4)
    problem = Problem(np.stack([wild.matrices[0]] * 4), np.stack([wild.centres[0]] * 4))
    centres = []

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        centres.append(together.sync.centre().numpy().copy())

    solve(problem, EASGD(pull=0.9), steps=150, lr=0.5 / problem.smoothness, period=2, on_step=on_step)
    assert np.abs(centres[-1] - problem.optimum).max() < 1e-3
    from ..contract import toy

    models = toy.train(EASGD()).result["models"]
    assert set(models) == {"local", "mean", "centre"}
    assert models["centre"]["loss"] != models["mean"]["loss"]


@pytest.mark.parametrize("sync", [EASGD(), EAMSGD()], ids=["easgd", "eamsgd"])
def test_costs_resumes_and_runs_on_processes(sync: Any) -> None:
    assert [sync.cost(ModelSize(100, 4), rank, 4, True) for rank in range(4)] == [(6, 600)] * 4
    assert sync.cost(ModelSize(100, 4), 0, 4, False) == (0, 0)
    sends_what_cost_declares(sync, period=2)
    resumes_from_any_step(sync, period=2)
    same_on_processes(sync, period=2)
