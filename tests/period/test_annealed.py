"""Rounds that become rarer as the learning rate decays: the law, the budget, resumed runs, own loops."""

from __future__ import annotations

import logging
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.clock import Clock
from equipoise.core.context import Context, Forecast
from equipoise.core.random import seed_worker
from equipoise.loop.lr_schedule import LRSchedule

from ..contract import toy

DATA = torch.randn(1600, 8, generator=torch.Generator().manual_seed(1))
LABELS = DATA[:, :4].argmax(1)


def train(period: Any, *, kind: str | None = "cosine", epochs: float | None = 3, **changes: Any) -> eq.Run:
    chosen: dict[str, Any] = {"workers": 2, "batch": 8, "deterministic": True, **changes}
    chosen.setdefault("scheduler", None if kind is None else lambda o: LRSchedule(o, kind, 0.1))
    return eq.train(
        toy.model,
        nn.CrossEntropyLoss(),
        (DATA, LABELS),
        epochs=epochs,
        period=period,
        optimizer=toy.optimizer,
        **chosen,
    )


def ends(period: eq.period.Period, steps: int, decay: Any) -> list[int]:
    """The steps (from 1) that end with a round, of a run with so many steps of 10 examples."""
    clock = Clock()
    bound = period.bind(Context(None, clock, forecast=Forecast(10.0 * steps, decay)))  # type: ignore[arg-type]
    found = []
    for clock.step in range(steps):
        clock.consumed = 10 * (clock.step + 1)
        if bound.due(clock):
            found.append(clock.step + 1)
        assert bound.due(clock) == (clock.step + 1 in found), "asking twice changes nothing"
    return found


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_rounds_are_where_the_integral_of_the_decay_says(power: float) -> None:
    """d = 1 - t: the sum of d^p up to t is 1 - (1 - t)^(p + 1) of the entire one, so round k of R is at its k / R."""
    steps, every = 6000, 10
    found = ends(eq.period.AnnealedPeriod(steps=every, rounds=0.25, power=power), steps, lambda t: 1 - t)
    budget = 0.25 * steps / every
    assert len(found) in (budget - 1, budget)  # the last one is due with the last step, where rounding decides
    expected = [steps * (1 - (1 - k / budget) ** (1 / (power + 1))) for k in range(1, len(found) + 1)]
    for own, exact in zip(found[:-2], expected, strict=False):
        assert own == pytest.approx(exact, abs=0.003 * steps)


def test_no_step_has_two_rounds_and_the_budget_is_taken_elsewhere() -> None:
    """H = 1 / 0.9 on average cannot follow 1 / d: it is 1 in the first part of the run, and less follows d."""
    found = ends(eq.period.AnnealedPeriod(steps=1, rounds=0.9), 2000, lambda t: 1 - t)
    assert found[:1000] == list(range(1, 1001))
    assert len(found) == pytest.approx(1800, abs=5)
    assert ends(eq.period.AnnealedPeriod(steps=1, rounds=1.0), 50, lambda t: 1 - t)[:40] == list(range(1, 41))


@pytest.mark.parametrize(
    ("rounds", "power", "kind"), [(1 / 3, 1.0, "cosine"), (0.5, 2.0, "cosine"), (0.2, 1.0, "linear")]
)
def test_the_run_takes_its_budget_of_rounds(rounds: float, power: float, kind: str) -> None:
    constant = train(4, kind=kind).result
    rarer = train(eq.period.AnnealedPeriod(steps=4, rounds=rounds, power=power), kind=kind).result
    assert rarer["steps"] == constant["steps"] == 300
    assert constant["rounds"] == 75
    assert rarer["rounds"] == pytest.approx(rounds * 75, abs=1)


def test_without_a_decay_it_is_a_constant_period() -> None:
    constant = train(8).result["params_sha256"]
    assert train(eq.period.AnnealedPeriod(steps=4, rounds=0.5, power=0.0)).result["params_sha256"] == constant
    rule = eq.period.AnnealedPeriod(steps=4, rounds=0.5)
    assert train(rule).result["params_sha256"] != constant
    assert train(rule, kind=None).result["params_sha256"] == train(8, kind=None).result["params_sha256"]


def test_a_length_that_is_not_known_means_a_constant_period(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        run = train(eq.period.AnnealedPeriod(steps=4, rounds=0.5), epochs=None, steps=40)
    assert run.result["rounds"] == 5
    assert len([r for r in caplog.records if "does not know how long" in r.message]) == 1


@pytest.mark.parametrize("stop", [5, 107, 260])
def test_a_run_resumes_exactly(stop: int, tmp_path: Path) -> None:
    rule = eq.period.AnnealedPeriod(steps=4, rounds=0.4)
    undisturbed = train(rule).result
    train(rule, checkpoint_every=stop, keep=99, out=tmp_path / "run")
    resumed = train(rule, out=tmp_path / "run", resume=stop).result
    for key in ("params_sha256", "samples", "steps", "rounds"):
        assert resumed[key] == undisturbed[key], key


def test_an_own_loop_gives_the_same_bits() -> None:
    rule = eq.period.AnnealedPeriod(steps=4, rounds=0.4, epochs=2, decay="linear")

    def loop(comm: Comm) -> tuple[list[float], list[int]]:
        seed_worker(0, comm.rank)
        model = toy.model()
        optimizer = toy.optimizer(model.parameters())
        data = TensorDataset(DATA, LABELS)
        sampler = eq.Sampler(data, batch=8)
        found = []
        with eq.attach(model, optimizer, period=rule, sampler=sampler, deterministic=True, final="mean") as run:
            loader = DataLoader(data, batch_sampler=sampler, generator=torch.Generator())
            for _ in range(2):
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                    if run.clock.due:
                        found.append(run.clock.step)
        return [p.sum().item() for p in model.parameters()], found

    (own, found), _ = eq.spawn(loop, 2, virtual=True)
    trained = train(rule, epochs=2, kind=None)
    assert own == [p.sum().item() for p in trained.model.parameters()]
    assert len(found) == trained.result["rounds"] == pytest.approx(0.4 * 50, abs=1)
    gaps = [b - a for a, b in pairwise(found)]
    assert gaps[0] < 7 < math.ceil(gaps[-1] / 2), "rounds become rarer"


def test_with_batches_that_grow_too() -> None:
    """Each takes its part: a half of the steps and about a half of the rounds of these."""
    both = train(eq.period.AnnealedPeriod(steps=4, rounds=0.5), batch=eq.batch.Annealed(start=8, rounds=0.5)).result
    assert both["steps"] == pytest.approx(150, abs=4)
    assert 0.5 <= both["rounds"] / (both["steps"] / 4) < 0.75
