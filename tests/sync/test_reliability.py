"""How far weights follow gradient norms: as far as these differ by more than their noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.core.context import Context
from equipoise.core.errors import UserError
from equipoise.core.vector import Flat, ModelSize
from equipoise.sync import LGRAWA, MGRAWA
from equipoise.sync.reliability import Reliability, noise_of

from .checks import Layers, resumes_from_any_step, same_on_processes, sends_what_cost_declares
from .quadratic import Problem, solve

SIZES = (3, 4, 1)
WORKERS, PERIOD = 8, 4


def shares_by_round(sync: Any, levels: np.ndarray, deviation: float, rounds: int = 40) -> tuple[np.ndarray, float]:
    """The workers' shares (round, worker, weight), and the last reliability.

    levels: the true logarithm of the norms (worker, layer), to which every step adds noise.
    """

    def loop(comm: Any) -> tuple[np.ndarray, float]:
        model, rng = Layers(SIZES, torch.float32), np.random.default_rng([7, comm.rank])
        flat = Flat(model)
        context = Context(comm, flat=flat)
        bound = sync.bind(context)
        context.clock.batch, shares = 1, []
        for step in range(rounds * PERIOD):
            norms = np.exp(levels[comm.rank] + deviation * rng.standard_normal(len(SIZES)))
            for p, norm in zip(model.parameters(), norms, strict=True):
                p.grad = torch.full_like(p, norm / p.numel() ** 0.5)
            bound.before_step(flat.gather(), None)
            if step % PERIOD == PERIOD - 1:
                bound.after_step(flat.gather())
                shares.append(bound.own_weights.numpy().copy())
        return np.stack(shares), bound.reliability

    rows = eq.spawn(loop, len(levels), virtual=True)
    assert len({row[1] for row in rows}) == 1, "the same on all workers"
    return np.stack([row[0] for row in rows], axis=1), rows[0][1]


@pytest.mark.parametrize(("cls", "smoothing"), [(MGRAWA, 0.43), (LGRAWA, 0.0), (LGRAWA, 0.8)])
def test_noise_gives_equal_weights(cls: Any, smoothing: float) -> None:
    levels = np.full((WORKERS, len(SIZES)), -1.5)
    published, r = shares_by_round(cls(smoothing=smoothing), levels, 0.3)
    assert r == 1.0
    shrunk, r = shares_by_round(cls(smoothing=smoothing, shrink=True), levels, 0.3)
    assert r < 0.25
    away = [np.abs(shares[20:] - 1 / WORKERS).mean() for shares in (published, shrunk)]
    assert away[1] < 0.2 * away[0]


@pytest.mark.parametrize(("cls", "source"), [(MGRAWA, "train"), (LGRAWA, "last")])
def test_real_differences_give_the_published_weights(cls: Any, source: str) -> None:
    """With one measurement per round ("last"), noise is what changes between rounds."""
    levels = np.random.default_rng(0).normal(0.0, 0.5, (WORKERS, len(SIZES)))
    shrunk, r = shares_by_round(cls(shrink=True, source=source), levels, 0.02, rounds=5)
    published, _ = shares_by_round(cls(source=source), levels, 0.02, rounds=5)
    known = 1 if source == "train" else 2  # rounds before the first V
    assert r > 0.99
    np.testing.assert_array_equal(shrunk[:known], np.full_like(shrunk[:known], 1 / WORKERS))
    np.testing.assert_allclose(shrunk[known:], published[known:], rtol=0.02)
    assert np.ptp(published[known:]) > 0.05


def test_layers_are_trusted_one_by_one() -> None:
    levels = np.zeros((WORKERS, len(SIZES)))
    levels[:, 1] = np.linspace(-1, 1, WORKERS)
    shares, _ = shares_by_round(LGRAWA(shrink=True), levels, 0.1)
    assert np.abs(shares[20:, :, [0, 2]] - 1 / WORKERS).max() < 0.01
    exact = np.exp(-levels[:, 1]) / np.exp(-levels[:, 1]).sum()
    np.testing.assert_allclose(shares[20:, :, 1].mean(0), exact, rtol=0.05)


def test_the_reliability_is_the_part_of_the_variance_that_is_real() -> None:
    """Of many workers, in one round: r = 1 - V / B from sums in float32, whatever the scale of the norms."""
    rng = np.random.default_rng(1)
    real, noise, workers, steps, smoothing = 0.2, 0.3, 4000, 4, 0.43
    logs = 5.0 + rng.normal(0, real, (workers, 1, 1)) + rng.normal(0, noise, (workers, steps, 1))
    factors = smoothing ** np.arange(steps)[::-1]
    factors /= factors.sum()
    known, level = Reliability(1), np.einsum("k,mkl->ml", factors, logs)
    for _ in range(2):  # the first round has no mean to take the logarithms from
        numbers = [
            known.numbers(torch.from_numpy(y), noise_of(torch.from_numpy(rows), smoothing, steps))
            for y, rows in zip(level, logs, strict=True)
        ]
        known.update(torch.stack(numbers).float().sum(0))
        left = noise**2 * (factors**2).sum()
        assert float(known.values()) == pytest.approx(real**2 / (real**2 + left), abs=0.03)
    mean, within, between = known.moments[:, 0].tolist()
    assert mean == pytest.approx(5.0, abs=0.02)
    assert within / between == pytest.approx(left / level.var(ddof=1), rel=0.05)


def test_who_has_not_measured_does_not_count() -> None:
    known = Reliability(2)
    y, v = torch.tensor([[1.0, 2.0], [3.0, 2.0]], dtype=torch.float64), torch.full((2,), 0.5, dtype=torch.float64)
    rows = [known.numbers(y[0], v), known.numbers(y[1], v), known.numbers(None, None), known.numbers(y[0], None)]
    rows.append(known.numbers(y[0], v * np.nan))
    known.update(torch.stack(rows[:1] + rows[2:]).sum(0))
    assert known.moments.eq(0).all(), "one worker says nothing of differences"
    known.update(torch.stack(rows).sum(0))
    np.testing.assert_allclose(known.values(), [1 - 0.5 / 2.0, 0.0], rtol=1e-12)


def test_without_noise_or_differences_nothing_is_undefined() -> None:
    known = Reliability(1)
    zero = torch.zeros(1, dtype=torch.float64)
    assert float(known.values()) == 0.0
    known.update(known.numbers(zero - 18.0, zero) * 3)
    assert float(known.values()) == 0.0
    assert noise_of(torch.zeros(1, 1), 0.43, 1) is None


def test_equal_weights_need_no_numbers_and_a_fresh_batch_has_none() -> None:
    size = ModelSize(99, 4)
    assert MGRAWA(shrink=True).cost(size, 0, 4, True) == (6, 624)  # one worker, log n, its square, its noise
    assert MGRAWA(shrink=True, exponent=0.0).cost(size, 0, 4, True) == MGRAWA().cost(size, 0, 4, True) == (6, 600)
    with pytest.raises(UserError, match="source='train'"):
        LGRAWA(shrink=True, source="fresh")


@pytest.mark.parametrize("source", ["train", "last"])
def test_costs_resumes_and_runs_on_processes(source: str) -> None:
    sync = LGRAWA(source=source, exponent=2.0, shrink=True)
    resumes_from_any_step(sync, period=3, steps=14, stops=(2, 5, 6, 10))
    for wire in (None, eq.wire.Int8()):
        sends_what_cost_declares(sync, period=2, sizes=(3,), wire=wire)
    same_on_processes(sync, period=3, steps=11)


def test_late_sums_carry_it_too() -> None:
    sync = LGRAWA(shrink=True, delay=1)
    resumes_from_any_step(sync, period=3, steps=14, stops=(3, 4, 10))
    seen: dict[int, list[Any]] = {}

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        comm, own = together.comm, together.sync
        cost = own.cost(own.context.model_size, comm.rank, 3, True)
        arrived = step // 3  # sent after steps 2, 5, 8 and counted one later
        assert (comm.ledger.messages, comm.ledger.bytes) == (arrived * cost[0], arrived * cost[1])
        assert bool(own.moments.any()) == (arrived > 0)
        seen.setdefault(step, []).append(own.moments.tolist())

    solve(Problem.make(3), sync, steps=11, lr=0.05, period=3, on_step=on_step)
    assert all(rows == [rows[0]] * 3 for rows in seen.values()), "the same on all workers"
