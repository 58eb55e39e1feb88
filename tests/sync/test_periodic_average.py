"""The average of parameters: its weights, the optimizers' states, and what it equals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.loop.attach import attach
from equipoise.sync import AllReduce, PeriodicAverage

from ..contract import toy
from .checks import resumes_from_any_step, same_on_processes, sends_what_cost_declares
from .quadratic import Problem, solve


def test_every_step_with_equal_batches_is_data_parallel() -> None:
    """Plain SGD: averaging models after a step is averaging gradients before it."""
    data = (toy.INPUTS[:192], toy.TARGETS[:192])
    runs = [
        eq.train(toy.model, nn.CrossEntropyLoss(), data, workers=4, batch=8, steps=12, sync=sync)
        for sync in (AllReduce(), PeriodicAverage())
    ]
    for ours, theirs in zip(runs[1].model.parameters(), runs[0].model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_every_step_by_samples_is_data_parallel_with_unequal_batches_too() -> None:
    def trained(sync: Any) -> eq.Run:
        batch = eq.batch.Fixed([2, 4, 8, 16])
        data = (toy.INPUTS, toy.TARGETS)
        return eq.train(toy.model, nn.CrossEntropyLoss(), data, workers=4, batch=batch, steps=7, sync=sync)

    together, by_samples, by_share = (trained(s) for s in (AllReduce(), PeriodicAverage("samples"), PeriodicAverage()))
    pairs = zip(by_samples.model.parameters(), together.model.parameters(), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert by_share.result["params_sha256"] != by_samples.result["params_sha256"]


def test_local_steps_are_their_equations() -> None:
    problem, lr = Problem.make(4), 0.1
    x = np.zeros_like(problem.centres)
    for step in range(1, 11):
        x = x - lr * np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        if step % 3 == 0:
            x = np.tile(x.mean(0), (4, 1))
    for weights in ("size", "uniform", "samples"):
        np.testing.assert_allclose(solve(problem, PeriodicAverage(weights), steps=10, lr=lr, period=3), x, atol=1e-12)


@pytest.mark.parametrize("weights", ["size", "uniform", "samples"])
def test_weights(weights: str) -> None:
    """Worker r holds the value r, a share of (1, 2, 3) / 6 of the data, and has consumed (5, 0, 15) samples."""
    samples = [5, 0, 15]

    def loop(comm: Comm) -> list[float]:
        model = nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        values = []
        with attach(model, optimizer, sync=PeriodicAverage(weights), period=2, share=(comm.rank + 1) / 6) as together:
            for step in range(4):
                with torch.no_grad():
                    model.weight.fill_(comm.rank)
                model.weight.grad = torch.zeros_like(model.weight)
                together.batch = samples[comm.rank] if step == 1 else 0 if step < 2 else 7
                optimizer.step()
                values.append(model.weight.item())
        return values

    first = {"size": 8 / 6, "uniform": 1.0, "samples": 30 / 20}[weights]
    second = {"size": 8 / 6, "uniform": 1.0, "samples": 1.0}[weights]
    for row in eq.spawn(loop, 3, virtual=True):
        assert row[1] == pytest.approx(first)
        assert row[3] == pytest.approx(second), "samples of this round, not of the one before"


def states(policy: str, optimizer: Any, steps: int = 4) -> list[dict[str, torch.Tensor]]:
    """Everybody's optimizer state after a round."""
    problem = Problem.make(3)

    def loop(comm: Comm) -> dict[str, torch.Tensor]:
        a, c = torch.from_numpy(problem.matrices[comm.rank]), torch.from_numpy(problem.centres[comm.rank])
        model = nn.Linear(5, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(model.weight)
        own = optimizer(model.parameters())
        kept: dict[str, torch.Tensor] = {}
        with attach(model, own, sync=PeriodicAverage(state=policy), period=steps):
            for _ in range(steps):
                own.zero_grad()
                away = model.weight[0] - c
                (0.5 * away @ a @ away).backward()
                own.step()
        for name, value in own.state[model.weight].items():
            kept[name] = value.clone()
        return kept

    return eq.spawn(loop, 3, virtual=True)


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), ["momentum_buffer"]),
        (lambda p: torch.optim.AdamW(p, lr=0.05), ["exp_avg", "exp_avg_sq"]),
    ],
)
def test_states_of_the_optimizer(optimizer: Any, names: list[str]) -> None:
    local, averaged, reset = (states(policy, optimizer) for policy in ("local", "average", "reset"))
    for name in names:
        mean = sum(state[name] for state in local) / 3
        assert not torch.equal(local[0][name], local[1][name])
        for state in averaged:
            torch.testing.assert_close(state[name], mean)
        assert all(name not in state for state in reset)
    if "step" in local[0]:
        assert all(state["step"] == 4 for state in averaged), "counts are not averaged"


def test_averaged_states_travel_in_the_same_message() -> None:
    counted = {}
    for policy in ("local", "average"):
        optimizer = lambda p: torch.optim.Adam(p, lr=0.01)  # noqa: E731
        run = toy.train(PeriodicAverage(state=policy), steps=8, period=4, optimizer=optimizer)
        counted[policy] = run.result["messages"], run.result["bytes"]
    assert counted["average"] == (counted["local"][0], 3 * counted["local"][1])


def test_resumes_with_momentum_and_samples_in_the_middle_of_a_round(tmp_path: Path) -> None:
    for state in ("average", "reset"):
        sync = PeriodicAverage("samples", state)
        chosen = {"period": 4, "optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "batch": [2, 4, 8, 16]}
        uninterrupted = toy.train(sync, steps=10, **chosen).result
        toy.train(sync, steps=6, out=tmp_path / state, **chosen)
        resumed = toy.train(sync, steps=10, out=tmp_path / state, resume=True, **chosen).result
        for key in ("params_sha256", "bytes", "samples", "consensus"):
            assert resumed[key] == uninterrupted[key]


def test_evaluating_and_saving_change_nothing(tmp_path: Path) -> None:
    plain = toy.train(PeriodicAverage(), period=5, steps=30).result
    watched = toy.train(
        PeriodicAverage(), period=5, steps=30, evaluate_every=1, checkpoint_every=2, out=tmp_path / "run"
    ).result
    for key in ("params_sha256", "bytes", "rounds", "consensus"):
        assert watched[key] == plain[key]
    assert plain["consensus"] == 0.0, "30 steps end with a round"
    assert toy.train(PeriodicAverage(), period=5, steps=28).result["consensus"] > 0, (
        "and 28 do not: the workers were not synchronised"
    )


def test_costs_resumes_and_runs_on_processes() -> None:
    for weights in ("size", "uniform", "samples"):
        sends_what_cost_declares(PeriodicAverage(weights), period=2, sizes=(2, 3, 5))
        resumes_from_any_step(PeriodicAverage(weights), period=3)
    same_on_processes(PeriodicAverage("samples"), period=2)
