"""What the tests of the methods share: problems, matrices, and properties that many methods have."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.errors import UserError
from equipoise.loop.attach import attach
from equipoise.topology import Ring

from ..contract import toy
from .quadratic import Problem, error, solve

REAL_TIME = ("seconds", "busy")  # of the clock: they differ from run to run


def converges_to_the_optimum(sync: Any, workers: int, steps: int, lr: float, period: int = 1, **options: Any) -> None:
    """Heterogeneous quadratics, constant step: all workers end at the optimum of the mean. `lr` is in units of 1/L."""
    problem = mild(workers)
    points = solve(problem, sync, steps=steps, lr=lr / problem.smoothness, period=period, **options)
    assert error(problem, points) < 1e-8


def mild(workers: int) -> Problem:
    """A well-conditioned problem, so that few steps tell exact from biased."""
    wild = Problem.make(workers)
    return Problem(wild.matrices / wild.smoothness + np.eye(5), wild.centres)


def follows(
    sync: Any, reference: Callable[[Problem, float, int], list[np.ndarray]], steps: int, **options: Any
) -> None:
    """The method and a recursion on matrices give the same points, step by step."""
    problem = Problem.make(8)
    lr = 0.2 / problem.smoothness
    expected = reference(problem, lr, steps)
    seen = np.zeros((steps, *problem.centres.shape))

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        seen[step, together.comm.rank] = x

    solve(problem, sync, steps=steps, lr=lr, on_step=on_step, **options)
    np.testing.assert_allclose(seen, expected, rtol=0, atol=1e-12)


def same_on_processes(sync: Any, period: int = 1, steps: int = 7) -> None:
    problem = Problem.make(4)

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        if step == steps - 1:
            together.sync.finish()

    runs = [
        solve(problem, sync, steps=steps, lr=0.05, period=period, virtual=v, on_step=on_step) for v in (True, False)
    ]
    assert np.array_equal(*runs)
    assert np.abs(runs[0]).max() > 0


def sends_what_cost_declares(
    sync: Any, period: int = 1, sizes: tuple[int, ...] = (2, 3, 4, 5), steps: int = 7, wire: Any = None
) -> None:
    for size in sizes:
        sums: dict[int, tuple[int, int, int]] = {}

        def on_step(step: int, together: Any, x: np.ndarray, sums: Any = sums, size: int = size) -> None:
            comm, clock = together.comm, together.clock
            messages, bytes, rounds = sums.get(comm.rank, (0, 0, 0))
            declared = together.sync.cost(together.sync.context.model_size, comm.rank, size, clock.due, rounds)
            assert (comm.ledger.messages - messages, comm.ledger.bytes - bytes) == declared
            sums[comm.rank] = comm.ledger.messages, comm.ledger.bytes, clock.rounds

        solve(Problem.make(size), sync, steps=steps, lr=0.01, period=period, wire=wire, on_step=on_step)
        assert size == 1 or sums[0][0] > 0


def resumes_from_any_step(sync: Any, period: int = 1, steps: int = 9, stops: tuple[int, ...] = (1, 4, 6)) -> None:
    """Stopped again and again, also inside a phase, and resumed by new objects: the same bits and counts."""
    problem = Problem.make(4)

    def loop(comm: Comm) -> None:
        a, c = torch.from_numpy(problem.matrices[comm.rank]), torch.from_numpy(problem.centres[comm.rank])

        def run(steps: int, saved: Any = None) -> Any:
            model = nn.Linear(5, 1, bias=False, dtype=torch.float64)
            nn.init.zeros_(model.weight)
            own = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
            with attach(model, own, sync=sync, period=period) as together:
                comm.ledger.load_state_dict({"messages": 0, "bytes": 0})
                if saved is not None:
                    model.load_state_dict(saved[0])
                    own.load_state_dict(saved[1])
                    together.load_state_dict(saved[2])
                while together.clock.step < steps:
                    own.zero_grad()
                    away = model.weight[0] - c
                    (0.5 * away @ a @ away).backward()
                    own.step()
                state = copy.deepcopy((model.state_dict(), own.state_dict(), together.state_dict()))
                together.sync.finish()
            return state

        uninterrupted, resumed = run(steps), None
        for stop in (*stops, steps):
            resumed = run(stop, resumed)
        assert torch.equal(resumed[0]["weight"], uninterrupted[0]["weight"])
        for name, value in uninterrupted[2]["clock"].items():
            assert name in REAL_TIME or resumed[2]["clock"][name] == value, name
        for count in ("messages", "bytes"):
            assert resumed[2]["ledger"][count] == uninterrupted[2]["ledger"][count]
        torch.testing.assert_close(resumed[2]["sync"], uninterrupted[2]["sync"], rtol=0, atol=0)

    eq.spawn(loop, 4, virtual=True)


def mean_loss(problem: Problem, x: np.ndarray) -> float:
    away = x - problem.centres
    return float(0.5 * np.einsum("ni,nij,nj->n", away, problem.matrices, away).mean())


def refuses(sync: Any, words: str, workers: int = 8) -> None:
    with pytest.raises(UserError, match=words):
        solve(Problem.make(workers), sync, steps=1, lr=0.1)


def bias_halves_with_the_step(
    sync: Any, workers: int, steps: int, lr: float = 0.1, last: int = 1, slack: float = 0.25
) -> None:
    """Heterogeneous quadratics: half the step (and twice the steps) leaves half the error, averaged over the `last`."""
    problem = mild(workers)
    errors = []
    for factor in (1, 2):
        tail: list[np.ndarray] = []

        def on_step(step: int, together: Any, x: np.ndarray, tail: Any = tail, until: int = steps * factor) -> None:
            if step >= until - last:
                tail.append(x - problem.optimum)

        solve(problem, sync, steps=steps * factor, lr=lr / factor / problem.smoothness, on_step=on_step)
        errors.append(np.sqrt(np.mean(np.square(tail))))
    assert abs(errors[0] / errors[1] - 2) < slack
    assert errors[0] > 1e-3


def learns(sync: Any, optimizer: Callable[..., torch.optim.Optimizer], lr: float, **options: Any) -> None:
    """The mean model ends well below where it started; with Adam it rests where scaled gradients balance."""
    problem = Problem.make(4)
    points = solve(problem, sync, steps=60, lr=lr, optimizer=optimizer, **options)
    least, start = mean_loss(problem, problem.optimum), mean_loss(problem, np.zeros(5))
    assert mean_loss(problem, points.mean(0)) - least < 0.7 * (start - least)


def matrix_power(weights: np.ndarray, coefficients: list[float]) -> np.ndarray:
    before = now = np.eye(len(weights))
    for each in coefficients:
        before, now = now, (1 + each) * weights @ now - each * before
    return now


def resting_point(problem: Problem, lr: float) -> np.ndarray:
    """Where D-PSGD on a ring stays: X = W (X - a A (X - C)), solved."""
    n, d = problem.centres.shape
    mix = np.kron(Ring().on(n).matrix(), np.eye(d))
    pull = np.zeros((n * d, n * d))
    for rank in range(n):
        pull[rank * d : (rank + 1) * d, rank * d : (rank + 1) * d] = lr * problem.matrices[rank]
    right = mix @ pull @ problem.centres.reshape(-1)
    return np.linalg.solve(np.eye(n * d) - mix @ (np.eye(n * d) - pull), right).reshape(n, d)


class Layers(nn.Module):
    """A model of a few plain tensors."""

    def __init__(self, sizes: tuple[int, ...], dtype: torch.dtype = torch.float64):
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes])


def toy_sha(sync: Any, **changes: Any) -> str:
    return toy.train(sync, **changes).result["params_sha256"]
