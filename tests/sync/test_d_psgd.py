from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.errors import UserError
from equipoise.core.vector import ModelSize
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker
from equipoise.sync import DPSGD
from equipoise.topology import OnePeer, Ring
from equipoise.wire import BFloat16

from .checks import follows, mean_loss, resumes_from_any_step, same_on_processes, sends_what_cost_declares
from .quadratic import Problem, error, solve


def matrices(problem: Problem, lr: float, steps: int, after: bool = True) -> list[np.ndarray]:
    weights, x, path = Ring().on(len(problem.centres)).matrix(), np.zeros_like(problem.centres), []
    for _ in range(steps):
        g = np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        x = weights @ (x - lr * g) if after else weights @ x - lr * g
        path.append(x)
    return path


def bias(problem: Problem, lr: float) -> np.ndarray:
    """Where adapt then combine stops: the solution of X = W (X - a G(X)), a linear system."""
    n, dim = problem.centres.shape
    weights = np.kron(Ring().on(n).matrix(), np.eye(dim))
    blocks = np.zeros((n * dim, n * dim))
    for i in range(n):
        blocks[i * dim : (i + 1) * dim, i * dim : (i + 1) * dim] = problem.matrices[i]
    left = np.eye(n * dim) - weights @ (np.eye(n * dim) - lr * blocks)
    return np.linalg.solve(left, lr * weights @ blocks @ problem.centres.reshape(-1)).reshape(n, dim)


def test_both_orders_are_their_equations() -> None:
    follows(DPSGD(), matrices, 20)
    for overlap in (False, True):
        follows(DPSGD(combine="before", overlap=overlap), lambda p, a, s: matrices(p, a, s, after=False), 20)


@pytest.mark.parametrize("workers", [5, 8])
def test_stops_at_a_bias_that_halves_with_the_step(workers: int) -> None:
    problem = Problem.make(workers)
    lr = 0.4 / problem.smoothness
    points = solve(problem, DPSGD(), steps=150, lr=lr)
    assert np.abs(points - bias(problem, lr)).max() < 1e-5
    errors = [error(problem, bias(problem, lr / k)) for k in (16, 32, 64)]
    assert errors[0] > 1e-2
    for one, half in itertools.pairwise(errors):
        assert one / half == pytest.approx(2.0, rel=0.04)


def test_a_graph_that_changes_and_adam() -> None:
    problem = Problem.make(4)
    points = solve(problem, DPSGD(OnePeer()), steps=150, lr=0.03, optimizer=torch.optim.Adam)
    # Each worker's Adam scales its own gradients, which moves the point where they balance.
    assert np.abs(points - points.mean(0)).max() < 0.1
    assert mean_loss(problem, points.mean(0)) < 0.9 * mean_loss(problem, np.zeros(5))


def test_bfloat16_on_the_wire_halves_the_bytes_and_little_else() -> None:
    problem = Problem.make(5)
    lr = 0.2 / problem.smoothness
    wide, narrow = (solve(problem, DPSGD(), steps=60, lr=lr, wire=wire) for wire in (None, BFloat16()))
    assert 0 < np.abs(wide - narrow).max() < 0.01
    assert DPSGD().cost(ModelSize(100, 4, wire=BFloat16()), 0, 5, True) == (2, 400)
    sends_what_cost_declares(DPSGD(), sizes=(5,), wire=BFloat16())


def test_with_overlap_messages_travel_during_the_gradient_and_at_no_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small message of a meeting would queue behind the model, and the next gradient would wait for both."""
    during: dict[str, list[bool]] = {"gradient": [], "meeting": []}

    def loop(comm: Comm) -> None:
        data = Source((torch.randn(32, 3), torch.randn(32, 1)))
        sync = DPSGD(OnePeer(), combine="before", overlap=True)

        def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():  # no evaluation
                during["gradient"].append(worker.sync.mixing.in_flight)  # type: ignore[attr-defined]
            return nn.functional.mse_loss(outputs, targets)

        job = Job(
            model=lambda: nn.Linear(3, 1),
            loss=loss,
            train=data,
            length=Length(steps=5),
            optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
            sync=sync,
            log_every=1,
        )
        worker = Worker(job, comm)
        meet = worker.control._meet

        def observed(loss: float) -> Any:
            during["meeting"].append(worker.sync.mixing.in_flight)  # type: ignore[attr-defined]
            return meet(loss)

        monkeypatch.setattr(worker.control, "_meet", observed)
        worker.run()

    eq.spawn(loop, 2, virtual=True)
    assert sorted(during["gradient"]) == [False] * 2 + [True] * 8  # none is there before the first step
    assert len(during["meeting"]) >= 10
    assert not any(during["meeting"])


def test_overlap_is_refused_where_it_would_be_another_method() -> None:
    with pytest.raises(UserError, match="combine='before'"):
        DPSGD(overlap=True)
    with pytest.raises(UserError, match="every step"):
        solve(Problem.make(2), DPSGD(combine="before", overlap=True), steps=1, lr=0.1, period=2)


def test_costs_resumes_and_runs_on_processes() -> None:
    sends_what_cost_declares(DPSGD(combine="before"), period=2)
    sends_what_cost_declares(DPSGD(OnePeer(), combine="before", overlap=True), sizes=(5,))
    resumes_from_any_step(DPSGD(OnePeer(), combine="before", overlap=True))
    same_on_processes(DPSGD(combine="before", overlap=True))
