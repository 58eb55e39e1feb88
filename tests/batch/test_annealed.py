"""Batches that grow as the learning rate decays: the budget of rounds, the rate that goes with them, own loops."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.comm.current import current_comm
from equipoise.core.context import Context, Forecast, WorkerInfo
from equipoise.core.errors import UserError
from equipoise.core.random import seed_worker
from equipoise.loop.lr_schedule import LRSchedule

from ..contract import toy

DATA = torch.randn(2000, 8, generator=torch.Generator().manual_seed(1))
LABELS = DATA[:, :4].argmax(1)


def cosine(optimizer: torch.optim.Optimizer) -> LRSchedule:
    return LRSchedule(optimizer, "cosine", 0.1)


def train(rule: Any, *, epochs: float = 3, **changes: Any) -> eq.Run:
    chosen = {"workers": 2, "period": 4, "scheduler": cosine, "deterministic": True, "log_every": 1, **changes}
    optimizer = chosen.pop("optimizer", toy.optimizer)
    return eq.train(
        toy.model, nn.CrossEntropyLoss(), (DATA, LABELS), epochs=epochs, batch=rule, optimizer=optimizer, **chosen
    )


@pytest.mark.parametrize(
    ("rounds", "power", "kind"),
    [(1 / 3, 0.5, "cosine"), (0.5, 1.0, "cosine"), (0.2, 0.5, "linear"), (0.9, 0.5, "linear")],
)
def test_the_run_takes_its_budget_of_rounds(rounds: float, power: float, kind: str) -> None:
    schedule = lambda optimizer: LRSchedule(optimizer, kind, 0.1)  # noqa: E731
    small = train(8, scheduler=schedule).result
    grown = train(eq.batch.Annealed(start=8, rounds=rounds, power=power), scheduler=schedule).result
    assert grown["samples"] == small["samples"] == 6000
    # Each of three epochs ends with a shorter batch, and a round has four steps.
    assert grown["steps"] / small["steps"] == pytest.approx(rounds, abs=0.01 + 3 / small["steps"])
    assert grown["rounds"] == grown["steps"] // 4


def test_sizes_and_rates_follow_the_decay(tmp_path: Path) -> None:
    """b = c start / sqrt(d) up to rounding, and the rate is that of small batches times b / start."""
    rows: list[tuple[int, int, float, float]] = []

    class Recorded(LRSchedule):
        def step(self) -> None:
            worker = self.worker
            assert worker is not None
            if worker.comm.rank == 0:
                rates = worker.clock.lr, worker.optimizer.param_groups[0]["lr"]
                rows.append((worker.position.consumed, worker.position.largest, *rates))
            super().step()

    train(eq.batch.Annealed(start=8, most=100), scheduler=lambda o: Recorded(o, "cosine", 0.1))
    largest = [size for _, size, _, _ in rows]
    assert largest == sorted(largest)
    assert largest[-1] == 100
    factors = []
    for consumed, size, used, left in rows:
        assert used == pytest.approx(left * size / 8, rel=1e-12), "the schedule's own rate is back after the step"
        done = (consumed - 2 * size) / 6000
        decay = 0.5 * (1 + math.cos(math.pi * (max(done, 0.1) - 0.1) / 0.9))
        if size < 100 and consumed % 2000:
            factors.append((size - 0.5, size + 0.5, math.sqrt(decay) / 8))
    low, high = max(a * s for a, _, s in factors), min(b * s for _, b, s in factors)
    assert low <= high, "one factor c explains all sizes"
    assert 1.5 < low < 3


@pytest.mark.parametrize(("kind", "power"), [(torch.optim.Adam, 0.5), (torch.optim.SGD, 1.0)])
def test_auto_scales_by_the_optimizer(kind: Any, power: float) -> None:
    rates: list[float] = []

    class Watched(kind):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    rule = eq.batch.Annealed(start=8, rounds=0.25, power=0.0)
    train(rule, optimizer=lambda p: Watched(p, lr=0.01), scheduler=None, epochs=0.1)
    assert rates == pytest.approx([0.01 * 4**power] * len(rates))
    rates.clear()
    train(
        eq.batch.Annealed(start=8, scale_lr="none"), optimizer=lambda p: Watched(p, lr=0.01), scheduler=None, epochs=0.1
    )
    assert set(rates) == {0.01}


def test_without_growth_it_is_a_constant_batch() -> None:
    rule = eq.batch.Annealed(start=8, rounds=0.5, power=0.0, scale_lr="none")
    assert train(rule).result["params_sha256"] == train(16).result["params_sha256"]
    scaled = eq.batch.Annealed(start=8, rounds=0.5, power=0.0)
    faster = lambda p: torch.optim.SGD(p, lr=0.4)  # noqa: E731
    assert train(scaled).result["params_sha256"] == train(16, optimizer=faster).result["params_sha256"]


def test_a_length_that_is_not_known_means_a_constant_batch(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        run = train(eq.batch.Annealed(start=8, rounds=0.25), epochs=None, steps=4)
    assert run.result["samples"] == 4 * 2 * 32
    assert len([r for r in caplog.records if "does not know how long" in r.message]) == 1


@pytest.mark.parametrize("stop", [5, 60, 111])
def test_a_run_resumes_exactly(stop: int, tmp_path: Path) -> None:
    rule = eq.batch.Annealed(start=8, rounds=0.4)
    undisturbed = train(rule).result
    train(rule, checkpoint_every=stop, keep=99, out=tmp_path / "run")
    resumed = train(rule, out=tmp_path / "run", resume=stop).result
    for key in ("params_sha256", "samples", "steps", "rounds"):
        assert resumed[key] == undisturbed[key], key


def test_an_own_loop_gives_the_same_bits() -> None:
    """With a scheduler of torch, which multiplies the rate it finds: the gain must be gone by then."""
    rule = eq.batch.Annealed(start=8, rounds=0.3, epochs=2, decay="linear")

    def loop(comm: Comm) -> tuple[list[float], list[int], list[float]]:
        seed_worker(0, comm.rank)
        model = toy.model()
        optimizer = toy.optimizer(model.parameters())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        data = TensorDataset(DATA, LABELS)
        sampler = eq.Sampler(data, batch=rule)
        sizes, rates = [], []
        with eq.attach(model, optimizer, period=4, sampler=sampler, deterministic=True, final="mean") as run:
            loader = DataLoader(data, batch_sampler=sampler, generator=torch.Generator())
            for _ in range(2):
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                    scheduler.step()
                    sizes.append(len(x))
                    rates.append(run.clock.lr / optimizer.param_groups[0]["lr"] * 0.99)
        return [p.sum().item() for p in model.parameters()], sizes, rates

    (own, sizes, rates), _ = eq.spawn(loop, 2, virtual=True)
    trained = train(rule, epochs=2, scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.99))
    assert own == [p.sum().item() for p in trained.model.parameters()]
    full = [(size, rate) for size, rate in zip(sizes, rates, strict=True) if size > 30]
    assert all(rate == pytest.approx(size / 8) for size, rate in full[:-1])
    assert len(sizes) == pytest.approx(0.3 * 250, abs=4)


@pytest.mark.parametrize("scaling", ["linear", "sqrt", "adascale"])
def test_adaptive_rules_scale_the_rate_themselves(scaling: str) -> None:
    """As `--scaling` does, which needs `eq.train`."""
    options: dict[str, Any] = {"start": 4, "eta": 0.5, "most": 32}
    by_schedule = train(eq.batch.NormTest(**options), scheduler=lambda o: LRSchedule(o, scaling=scaling))
    by_rule = train(eq.batch.NormTest(**options, scale_lr=scaling), scheduler=None)
    assert by_rule.result["steps"] < 3 * 250 * 0.9
    x, y = (torch.cat([p.flatten() for p in r.model.parameters()]) for r in (by_schedule, by_rule))
    assert torch.allclose(x, y, atol=1e-4)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UserError, match="below 24"):
        eq.batch.Annealed(start=8, most=20)
    both = lambda o: LRSchedule(o, "cosine", 0.0, "linear")  # noqa: E731
    with pytest.raises(UserError, match="set one of them to none"):
        train(eq.batch.Annealed(start=8), scheduler=both)


def sizes_over(rule: eq.batch.Annealed, forecast: Forecast | None, parts: list[float]) -> list[int]:
    """b at parts of a run over 1,000 examples on one worker."""
    context = Context(current_comm(), worker=WorkerInfo(examples=1000, total_examples=1000), forecast=forecast)
    method, found = rule.bind(context), []
    for part in parts:
        context.clock.consumed = round(1000 * part)
        found.append(method.sizes()[0])
    return found


def test_the_decay_that_is_said_is_the_one_that_counts() -> None:
    """b sqrt(d) is constant for the decay of the option, which goes before that of the schedule."""
    decays = {
        "cosine": lambda t: 0.5 * (1 + math.cos(math.pi * t)),
        "linear": lambda t: 1 - t,
        "constant": lambda t: 1.0,
    }
    parts = [0.0, 0.25, 0.5, 0.75]
    for name, decay in decays.items():
        rule = eq.batch.Annealed(start=100, rounds=0.25, decay=name)
        for forecast in (Forecast(1000.0), Forecast(1000.0, lambda t: 1 - t**2)):
            constants = [
                size * math.sqrt(decay(t)) for size, t in zip(sizes_over(rule, forecast, parts), parts, strict=True)
            ]
            assert constants == pytest.approx([constants[0]] * 4, rel=0.01), name
    by_schedule = sizes_over(eq.batch.Annealed(start=100, rounds=0.25), Forecast(1000.0, lambda t: 1 - t**2), parts)
    constants = [size * math.sqrt(1 - t**2) for size, t in zip(by_schedule, parts, strict=True)]
    assert constants == pytest.approx([constants[0]] * 4, rel=0.01)


def test_sizes_stay_within_their_bounds() -> None:
    """From start to five times the average batch, where they stay after the end that was foreseen."""
    assert sizes_over(eq.batch.Annealed(start=10, rounds=0.5), Forecast(1000.0), [1.0, 1.3, 2.0]) == [100, 100, 100]
    assert sizes_over(eq.batch.Annealed(start=10, rounds=0.5, epochs=2), None, [2.0]) == [100]
    small = sizes_over(eq.batch.Annealed(start=10, rounds=0.95, decay="linear"), Forecast(1000.0), [0.0, 0.1])
    assert small == [10, 10]
