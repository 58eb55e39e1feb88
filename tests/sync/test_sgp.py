from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.core.context import Context
from equipoise.core.errors import UserError
from equipoise.core.vector import Flat, ModelSize
from equipoise.sync import SGP
from equipoise.topology import Edges, Exponential, OnePeer, Star

from .checks import (
    bias_halves_with_the_step,
    follows,
    learns,
    refuses,
    resumes_from_any_step,
    same_on_processes,
    sends_what_cost_declares,
)
from .quadratic import Problem, solve

LOPSIDED = Edges(links=[*((i, (i + 1) % 8) for i in range(8)), (0, 2), (0, 5), (3, 6)], directed=True)


def push_sum(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
    share, y, w = LOPSIDED.on(8).matrix(), np.zeros_like(problem.centres), np.ones((8, 1))
    path = []
    for _ in range(steps):
        g = np.einsum("nij,nj->ni", problem.matrices, y / w - problem.centres)
        y, w = share @ (y - lr * g), share @ w
        path.append(y / w)
    return path


def test_is_its_equations_where_in_and_out_do_not_balance() -> None:
    assert np.abs(LOPSIDED.on(8).matrix().sum(1) - 1).max() > 0.1
    follows(SGP(LOPSIDED), push_sum, 24)


def test_bias_halves_with_the_step() -> None:
    bias_halves_with_the_step(SGP(LOPSIDED), 8, steps=80)
    bias_halves_with_the_step(SGP(), 5, steps=90, last=3)  # the graph changes in periods of three


@pytest.mark.parametrize(("topology", "workers"), [(Exponential(), 6), (OnePeer(), 6), (LOPSIDED, 8)], ids=repr)
def test_pushing_loses_nothing(topology: Any, workers: int) -> None:
    """The sum of y moves by the optimizers' steps alone and the sum of w not at all, local steps or not."""
    problem, lr = Problem.make(workers), 0.05
    y, w = np.zeros((24, workers, 5)), np.zeros((24, workers))
    g = np.zeros_like(y)

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        rank, sync = together.comm.rank, together.sync
        y[step, rank], w[step, rank] = x + sync.offset.numpy(), sync.weight
        g[step, rank] = problem.matrices[rank] @ (x - problem.centres[rank])

    solve(problem, SGP(topology), steps=24, lr=lr, period=3, on_step=on_step)
    np.testing.assert_allclose(y[1:].sum(1), (y[:-1] - lr * g[:-1]).sum(1), atol=1e-13)
    np.testing.assert_allclose(w.sum(1), workers, atol=1e-13)
    assert (np.abs(w - 1).max() > 0.1) == (topology is LOPSIDED)


def test_learns_with_momentum_and_adam() -> None:
    learns(SGP(), torch.optim.SGD, 0.02, momentum=0.9)
    learns(SGP(), torch.optim.Adam, 0.05)


def test_health_and_refusals() -> None:
    weights = []

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        with together.comm.uncounted():
            weights.append(together.sync.least_weight)

    solve(Problem.make(8), SGP(LOPSIDED), steps=5, lr=0.01, on_step=on_step)
    assert 0.1 < min(weights) < 0.9
    refuses(SGP(Edges(links=[(0, 1), (1, 2)], directed=True)), "not strongly connected", workers=3)

    def loop(comm: Any) -> None:
        context = Context(comm, flat=Flat(torch.nn.Linear(2, 1)))
        SGP(OnePeer() if comm.rank else Star()).bind(context)

    with pytest.raises(UserError, match="disagree on the graph"):
        eq.spawn(loop, 4, virtual=True)


def test_costs_resumes_and_runs_on_processes() -> None:
    assert SGP().cost(ModelSize(100, 4), 0, 8, True) == (1, 404)
    sends_what_cost_declares(SGP())
    sends_what_cost_declares(SGP(Star()), period=2)
    resumes_from_any_step(SGP(Edges(links=[(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], directed=True)), period=2)
    same_on_processes(SGP())
