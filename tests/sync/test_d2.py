from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.sync import D2
from equipoise.topology import Exponential, Hypercube, OnePeer, Ring, Torus

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
    """X' = W (2 X - X_before - a (G - G_before)), the form of the paper."""
    weights, x = Ring().on(len(problem.centres)).matrix(), np.zeros_like(problem.centres)
    path: list[np.ndarray] = []
    before = g_before = x
    for step in range(steps):
        g = np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        new = weights @ (x - lr * g) if step == 0 else weights @ (2 * x - before - lr * (g - g_before))
        before, g_before, x = x, g, new
        path.append(x)
    return path


def test_is_the_recursion_of_the_paper() -> None:
    follows(D2(), matrices, 24)


@pytest.mark.parametrize("workers", [4, 5])
def test_exact(workers: int) -> None:
    converges_to_the_optimum(D2(), workers, steps=90, lr=0.8)


def test_exact_with_momentum() -> None:
    converges_to_the_optimum(D2(), 5, steps=100, lr=0.2, momentum=0.5)


def test_exact_when_the_step_size_changes() -> None:
    """The correction holds displacements, not gradients: a new step size does not disturb what it knows."""
    problem = mild(5)

    def halve(step: int, together: Any, x: np.ndarray) -> None:
        if step == 15:
            together.optimizer.param_groups[0]["lr"] /= 2

    points = solve(problem, D2(), steps=90, lr=0.8 / problem.smoothness, on_step=halve)
    assert error(problem, points) < 1e-8


def test_hypercube_diverges_unless_lazy(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = mild(8)
    lr = 0.5 / problem.smoothness
    refuses(D2(Hypercube(), lazy="never"), "at least -1/3.*eigenvalue -0.500.*lazy=True")
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        points = solve(problem, D2(Hypercube()), steps=100, lr=lr)
    assert error(problem, points) < 1e-8
    assert len(caplog.messages) == 1, "said once, by worker 0"
    assert "(I + W) / 2" in caplog.messages[0]
    monkeypatch.setattr("equipoise.sync.d2._LEAST", -1.0)
    with np.errstate(all="ignore"):
        assert not error(problem, solve(problem, D2(Hypercube(), lazy="never"), steps=100, lr=lr)) < 1e3


def test_even_rings_sit_on_the_limit_and_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    solve(Problem.make(4), D2(lazy="never"), steps=1, lr=0.1)
    assert not caplog.messages


def test_graphs_it_cannot_use_are_refused() -> None:
    refuses(D2(OnePeer()), "same graph in every round")
    refuses(D2(Exponential()), "symmetric weights")
    refuses(D2(Torus(), lazy="never"), "at least -1/3", workers=16)


def test_adam_agrees_on_one_model() -> None:
    problem = Problem.make(5)
    points = solve(problem, D2(), steps=150, lr=0.02, optimizer=torch.optim.Adam)
    assert np.abs(points - points.mean(0)).max() < 0.05
    assert np.abs(points.mean(0) - problem.optimum).max() < 1.0


def test_costs_resumes_and_runs_on_processes() -> None:
    sends_what_cost_declares(D2())
    resumes_from_any_step(D2())
    same_on_processes(D2(Hypercube()))


@pytest.mark.parametrize("sync", [eq.sync.D2, eq.sync.EDM])
def test_a_graph_that_swaps_two_models_is_made_lazy(sync: Any, caplog: pytest.LogCaptureFixture) -> None:
    """W = [[0, 1], [1, 0]] has the eigenvalue -1: its rounds never agree, those of (I + W) / 2 do at once."""
    torch.manual_seed(0)
    x = torch.randn(64, 5)
    swap = eq.topology.Edges(links=[(0, 1, 1.0)])
    data = (x, x.sum(1, keepdim=True))
    run = eq.train(nn.Linear(5, 1), nn.MSELoss(), data, workers=2, steps=40, sync=sync(topology=swap))
    assert "(I + W) / 2" in caplog.text
    assert run.result["models"]["mean"]["loss"] < 0.1
    with pytest.raises(UserError, match="lazy=True"):
        eq.train(nn.Linear(5, 1), nn.MSELoss(), data, workers=2, steps=2, sync=sync(topology=swap, lazy="never"))
