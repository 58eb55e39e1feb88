from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.comm.fused_reduction import chunks
from equipoise.core.errors import UserError
from equipoise.core.vector import ModelSize
from equipoise.loop.attach import attach
from equipoise.sync import DiLoCo, PeriodicAverage

from ..contract import toy
from .checks import resumes_from_any_step, same_on_processes, sends_what_cost_declares
from .quadratic import Problem, solve


def by_torch(problem: Problem, lr: float, period: int, steps: int, outer: dict[str, Any]) -> np.ndarray:
    """Rounds of local steps; between them torch's own SGD on the outer parameters."""
    x = np.zeros_like(problem.centres)
    z = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([z], **outer)
    for step in range(1, steps + 1):
        x = x - lr * np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        if step % period == 0:
            z.grad = z.detach() - torch.from_numpy(x.mean(0))
            optimizer.step()
            x = np.tile(z.detach().numpy(), (len(x), 1))
    return x


@pytest.mark.parametrize(
    "outer",
    [
        {"lr": 0.7, "momentum": 0.9, "nesterov": True},
        {"lr": 0.4, "momentum": 0.6, "nesterov": False},
        {"lr": 0.5, "momentum": 0.0, "nesterov": False},
    ],
)
def test_is_torchs_sgd_on_the_outer_gradient(outer: dict[str, Any]) -> None:
    problem = Problem.make(4)
    points = solve(problem, DiLoCo(**outer), steps=18, lr=0.05, period=4)
    np.testing.assert_allclose(points, by_torch(problem, 0.05, 4, 18, outer), atol=1e-12)


def test_plain_outer_sgd_is_the_periodic_average_to_the_bit() -> None:
    for nesterov in (True, False):
        sync = DiLoCo(lr=1.0, momentum=0.0, nesterov=nesterov)
        ours, theirs = (toy.train(s, period=3).result for s in (sync, PeriodicAverage()))
        for key in ("params_sha256", "bytes", "messages", "rounds"):
            assert ours[key] == theirs[key]


def test_the_centre_is_the_outer_model() -> None:
    run = toy.train(DiLoCo(), period=4, steps=22)
    centre, mean = (run.result["models"][name]["loss"] for name in ("centre", "mean"))
    assert centre != mean, "two local steps after the last round"
    run = toy.train(DiLoCo(), period=4, steps=20)
    assert run.result["models"]["centre"]["loss"] == run.result["models"]["mean"]["loss"]


def streamed(problem: Problem, sync: DiLoCo, lr: float, period: int, steps: int) -> np.ndarray:
    """Fragments in turn, applied `delay` steps after they were sent, mixed with what workers did meanwhile."""
    x = np.zeros_like(problem.centres)
    z, u = x[0].copy(), np.zeros(x.shape[1])
    parts = [slice(*p) for p in chunks(x.shape[1], sync.fragments)]
    sent: tuple[int, slice, np.ndarray] | None = None
    turn = 0

    def apply(part: slice, mean: np.ndarray) -> None:
        d = z[part] - mean
        u[part] = sync.momentum * u[part] + d
        z[part] -= sync.lr * (d + sync.momentum * u[part])
        x[:, part] = sync.alpha * x[:, part] + (1 - sync.alpha) * z[part]

    for step in range(1, steps + 1):
        x = x - lr * np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        if sent is not None and step == sent[0] + sync.delay:
            apply(*sent[1:])
            sent = None
        if step % period == 0:
            part = parts[turn % sync.fragments]
            turn += 1
            if sync.delay:
                sent = step, part, x[:, part].mean(0)
            else:
                apply(part, x[:, part].mean(0))
    return x


@pytest.mark.parametrize(
    "options",
    [{"fragments": 2}, {"delay": 1, "alpha": 0.5}, {"delay": 2}, {"fragments": 3, "delay": 3, "alpha": 0.25}],
)
def test_fragments_and_delays_are_their_equations(options: dict[str, Any]) -> None:
    problem, sync = Problem.make(4), DiLoCo(lr=0.6, momentum=0.5, **options)
    points = solve(problem, sync, steps=25, lr=0.05, period=4)
    np.testing.assert_allclose(points, streamed(problem, sync, 0.05, 4, 25), atol=1e-12)


def test_fragments_are_sent_in_turn_and_together_cost_one_model() -> None:
    complete, parts = (DiLoCo(fragments=p) for p in (1, 4))
    for rank in range(3):
        cost = sum(parts.cost(ModelSize(103, 4), rank, 3, True, round)[1] for round in range(4))
        assert abs(cost - complete.cost(ModelSize(103, 4), rank, 3, True)[1]) <= 4 * 4 * 3
    sends_what_cost_declares(DiLoCo(fragments=2), period=2, sizes=(2, 3))


def test_a_message_in_flight_survives_a_checkpoint() -> None:
    for options in ({"delay": 2, "alpha": 0.5}, {"delay": 1, "fragments": 2}, {"fragments": 2, "weights": "samples"}):
        resumes_from_any_step(DiLoCo(**options), period=3, steps=14, stops=(3, 4, 6, 8, 10))


def test_delayed_messages_are_the_same_on_processes_and_may_be_large() -> None:
    same_on_processes(DiLoCo(delay=2, alpha=0.5), period=3, steps=11)

    def loop(comm: Comm) -> torch.Tensor:
        model = nn.Linear(300, 300, bias=False)  # chunks go through shared memory, several to each peer under way
        nn.init.constant_(model.weight, float(comm.rank))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with attach(model, optimizer, sync=DiLoCo(lr=1.0, momentum=0.0, delay=1), period=2):
            for step in range(8):
                with torch.no_grad():
                    model.weight.fill_(comm.rank + step // 2)
                model.weight.grad = torch.zeros_like(model.weight)
                optimizer.step()
                if step == 4:
                    kept = model.weight.detach().clone()
        return kept

    for kept in eq.spawn(loop, 4, virtual=False):
        # Sent after the fourth step, when workers held 1, 2, 3 and 4; it arrives after the fifth.
        assert torch.equal(kept, torch.full((300, 300), 2.5))


def test_invalid_options_are_refused() -> None:
    with pytest.raises(UserError, match="delay=1"):
        DiLoCo(alpha=0.5)
    with pytest.raises(UserError, match="complete model"):
        DiLoCo(fragments=2, state="average")
    with pytest.raises(UserError, match="shorter than the period"):
        solve(Problem.make(2), DiLoCo(delay=3), steps=9, lr=0.1, period=2)


def test_costs_resumes_and_runs_on_processes() -> None:
    sends_what_cost_declares(DiLoCo(), period=2, sizes=(2, 5))
    resumes_from_any_step(DiLoCo(), period=3)
    same_on_processes(DiLoCo(fragments=2), period=2)
