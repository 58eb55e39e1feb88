"""MGRAWA in complete runs: where norms come from, and what the method does with them."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.vector import ModelSize
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker
from equipoise.sync import MGRAWA
from equipoise.sync.gradient_norms import norms_of

from ..contract import toy
from .checks import same_on_processes, sends_what_cost_declares
from .quadratic import Problem, solve


def normed() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.3), nn.Linear(12, 4))


def job(sync: Any, **changes: Any) -> Job:
    return Job(
        model=normed,
        loss=nn.CrossEntropyLoss(),
        train=Source((toy.INPUTS, toy.TARGETS)),
        length=Length(steps=100),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        batch=eq.batch.Fixed(8),
        sync=sync,
        period=eq.period.Every(2),
        **changes,
    )


def test_a_fresh_batch_is_the_same_for_all_and_leaves_no_trace() -> None:
    def loop(comm: Comm) -> tuple[Any, ...]:
        worker = Worker(job(MGRAWA(source="fresh", examples=64)), comm)
        worker.model.train()
        worker.step()
        before = [b.clone() for b in worker.model.buffers()], torch.get_rng_state(), np.random.get_state()[1].copy()
        grads = [p.grad.clone() for p in worker.model.parameters()]
        norms = worker.sync.norms.at_round()
        assert all(torch.equal(a, b) for a, b in zip(before[0], worker.model.buffers(), strict=True))
        assert torch.equal(before[1], torch.get_rng_state())
        assert (before[2] == np.random.get_state()[1]).all()
        assert all(torch.equal(a, p.grad) for a, p in zip(grads, worker.model.parameters(), strict=True))
        assert worker.model.training
        # By hand: the gradient in eval mode on the examples of draw 0.
        drawn = np.random.default_rng([0, 53, 0]).integers(len(toy.INPUTS), size=64)
        worker.model.eval()
        loss = nn.functional.cross_entropy(worker.model(toy.INPUTS[drawn]), toy.TARGETS[drawn])
        expected = norms_of(torch.autograd.grad(loss, list(worker.model.parameters())))
        np.testing.assert_allclose(norms, expected, rtol=1e-5)
        return worker.comm.now, norms

    rows = eq.spawn(loop, 2, virtual=True)
    assert rows[0][0] == pytest.approx((8 + 64) / 1000)  # the pass takes its simulated time
    assert not torch.equal(rows[0][1], rows[1][1])


def test_debiasing_takes_the_noise_off() -> None:
    """On batches of 16 the norm is mostly noise: without it, repeated draws find the norm of the full gradient."""

    def loop(comm: Comm) -> tuple[float, float, float]:
        worker = Worker(job(MGRAWA(source="fresh", examples=16, debias=True, smoothing=0.99)), comm)
        if comm.rank > 0:
            return 0.0, 0.0, 0.0
        norms = worker.sync.norms
        for number in range(400):
            worker.clock.rounds = number
            norms.at_round()
        level, noise = norms.smoothed / (1 - 0.99**norms.count)
        worker.model.eval()
        loss = nn.functional.cross_entropy(worker.model(toy.INPUTS), toy.TARGETS)
        full = norms_of(torch.autograd.grad(loss, list(worker.model.parameters()))).square().sum()
        return float(level.sum()), float((level - noise).sum()), float(full)

    with_noise, without, full = eq.spawn(loop, 2, virtual=True)[0]
    assert with_noise > 1.3 * full
    assert without == pytest.approx(full, rel=0.1)


def test_a_flat_basin_outweighs_a_sharp_one_once_the_noise_is_gone() -> None:
    """Stationary SGD: |g|^2 = lr h s / (2 - lr h); a stochastic norm adds the variance s and hides it (spec, 2.11)."""
    lr, variance, curvatures = 0.1, 1.0, np.array([0.1, 1.0, 5.0, 15.0])
    rng = np.random.default_rng(0)
    x, sums = np.zeros((4000, 4)), np.zeros(4)
    steps = 400
    for step in range(steps):
        x -= lr * (curvatures * x + rng.standard_normal(x.shape) * variance**0.5)
        if step >= steps // 2:
            sums += ((curvatures * x) ** 2).mean(0)
    measured = sums / (steps - steps // 2)
    exact = lr * curvatures * variance / (2 - lr * curvatures)
    np.testing.assert_allclose(exact, [0.005, 0.053, 0.33, 3.0], rtol=0.02)
    np.testing.assert_allclose(measured, exact, rtol=0.06)
    noisy = np.array([1.005, 1.053, 1.333, 4.0])
    np.testing.assert_allclose(exact + variance, noisy, rtol=1e-3)

    def share_of_the_flattest(squares: np.ndarray) -> float:
        inverse = squares**-0.5
        return float(inverse[0] / inverse.sum())

    assert share_of_the_flattest(noisy) < 0.32
    assert share_of_the_flattest(exact) > 0.6


def test_converges_on_equal_convex_losses_and_the_worst_worker_never_gets_worse() -> None:
    wild = Problem.make(4)
    problem = Problem(np.stack([wild.matrices[0]] * 4), np.stack([wild.centres[0]] * 4))
    lr = 0.5 / problem.smoothness
    seen: dict[int, list[float]] = {}

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        if step == 0:  # workers start apart
            together.model.weight.data += 0.5 * (together.comm.rank + 1)
        away = together.model.weight.detach().numpy()[0] - problem.optimum
        seen.setdefault(step, []).append(float(away @ problem.matrices[0] @ away / 2))

    solve(problem, MGRAWA(pull=0.5), steps=80, lr=lr, period=4, on_step=on_step)
    worst = [max(losses) for _, losses in sorted(seen.items())]
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(worst))
    strongly = np.linalg.eigvalsh(problem.matrices[0])[0]
    assert worst[-1] < worst[0] * (1 - lr * strongly) ** 79


@pytest.mark.parametrize(("source", "steps"), [("train", 4), ("last", 1)])
def test_only_the_steps_before_a_round_are_measured(source: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm takes a few per cent of a small step; in the first round its length is not known yet."""
    from equipoise.sync import gradient_norms

    seen: list[int] = []
    real = gradient_norms.layer_norms

    def counted(tensors: Any) -> torch.Tensor:
        seen.append(1 + current[0].step)
        return real(tensors)

    current: list[Any] = [None]
    monkeypatch.setattr(gradient_norms, "layer_norms", counted)

    def loop(comm: Comm) -> None:
        worker = Worker(dataclasses.replace(job(MGRAWA(source=source)), period=eq.period.Every(10)), comm)
        for _ in range(30):
            if worker.position.steps_left == 0:
                worker.clock.epoch += 1
                worker.position.begin(worker.clock.epoch)
            current[0] = worker.clock  # of the running worker: workers hand over at rounds only
            worker.step()

    eq.spawn(loop, 2, virtual=True)
    first = list(range(1, 11))
    later = [step for end in (20, 30) for step in range(end - steps + 1, end + 1)]
    assert sorted(set(seen)) == first + later


def test_health_shows_weights_and_norms() -> None:
    health = toy.train(MGRAWA()).result["health"]
    assert 0.25 < health["largest_weight"] < 0.6
    assert health["gradient_norm"] > 0


def test_proximity_between_rounds_keeps_workers_nearer() -> None:
    apart = toy.train(MGRAWA(pull=0.1), period=8, steps=31).result["consensus"]
    near = toy.train(MGRAWA(pull=0.1, prox=0.9), period=8, steps=31).result["consensus"]
    assert near < 0.8 * apart


@pytest.mark.parametrize("source", ["train", "last", "fresh"])
def test_every_source_resumes_to_the_same_bits(source: str, tmp_path: Any) -> None:
    sync = MGRAWA(source=source, debias=source == "fresh", prox=0.1)
    options: dict[str, Any] = {"period": 3}
    uninterrupted = toy.train(sync, **options).result
    toy.train(sync, **options, steps=5, out=tmp_path / "run")
    toy.train(sync, **options, steps=12, out=tmp_path / "run", resume=True)
    resumed = toy.train(sync, **options, out=tmp_path / "run", resume=True).result
    for key in ("params_sha256", "rounds", "models", "health"):
        assert resumed[key] == uninterrupted[key], key


def test_costs_resumes_and_runs_on_processes() -> None:
    assert MGRAWA().cost(ModelSize(99, 4), 0, 4, True) == (6, 600)
    sends_what_cost_declares(MGRAWA(), period=2)
    same_on_processes(MGRAWA(prox=0.1), period=2)
