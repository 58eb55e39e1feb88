"""When rounds are due: by hand, from any step, and the same on all workers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.core.clock import Clock
from equipoise.core.context import Context
from equipoise.core.errors import UserError
from equipoise.loop.lr_schedule import LRSchedule

from ..contract import toy


def rounds(
    period: eq.period.Period, steps: int, lr: Any = 0.1, saved: Any = None, begin: int = 0
) -> tuple[list[int], Any]:
    """The steps (from 1) that end with a round, and the state at the end."""
    clock = Clock(step=begin)
    bound = period.bind(Context(None, clock))  # type: ignore[arg-type]
    if saved is not None:
        bound.load_state_dict(saved)
    ends = []
    while clock.step < steps:
        clock.lr = lr(clock.step) if callable(lr) else lr
        due = bound.due(clock)
        assert due == bound.due(clock), "asking twice changes nothing"
        if due:
            ends.append(clock.step + 1)
        clock.step += 1
    return ends, bound.state_dict()


def test_every() -> None:
    assert rounds(eq.period.Every(3), 10)[0] == [3, 6, 9]


def test_post_local() -> None:
    assert rounds(eq.period.PostLocal(switch=3, steps=4), 16)[0] == [1, 2, 3, 7, 11, 15]
    assert rounds(eq.period.PostLocal(switch=0, steps=4), 9)[0] == rounds(eq.period.Every(4), 9)[0]


def test_growing() -> None:
    assert rounds(eq.period.Growing(first=1, most=4), 20)[0] == [1, 3, 6, 10, 14, 18]
    assert rounds(eq.period.Growing(first=3, power=0.0), 10)[0] == [3, 6, 9]
    steps = rounds(eq.period.Growing(first=2, power=0.5, most=100), 200)[0]
    lengths = [b - a for a, b in pairwise([0, *steps])]
    assert lengths == [math.floor(2 * math.sqrt(k + 1)) for k in range(len(lengths))]
    with pytest.raises(UserError, match="raise it"):
        eq.period.Growing(first=8, most=4)


def test_qsr() -> None:
    """H = max(base, floor((alpha / lr)^2)), from the rate at which a round begins."""
    assert rounds(eq.period.QSR(base=2, alpha=0.35), 20, lr=0.1)[0] == [12]
    assert rounds(eq.period.QSR(base=2, alpha=0.05), 7, lr=0.1)[0] == [2, 4, 6]
    falling = lambda step: 0.1 * (1 - step / 40)  # noqa: E731
    ends, _ = rounds(eq.period.QSR(base=2, alpha=0.15), 40, lr=falling)
    begin, expected = 0, []
    while begin + (length := max(2, int((0.15 / falling(begin)) ** 2))) <= 40:
        begin += length
        expected.append(begin)
    assert ends == expected
    lengths = [b - a for a, b in pairwise([0, *ends])]
    assert lengths == sorted(lengths)
    assert lengths[-1] > lengths[0]


def test_qsr_is_bounded_while_the_rate_rises_and_where_it_is_zero() -> None:
    rising = lambda step: min(0.1, 0.1 * (step + 1) / 6)  # noqa: E731
    for warmup in (0, 6):  # detected, or declared
        ends, _ = rounds(eq.period.QSR(base=2, alpha=0.2, warmup=warmup), 14, lr=rising)
        assert ends == [2, 4, 6, 10, 14]
    assert rounds(eq.period.QSR(base=2, most=5), 11, lr=0.0)[0] == [5, 10]
    with pytest.raises(UserError, match="raise it"):
        eq.period.QSR(base=8, most=4)


@pytest.mark.parametrize(
    "period", [eq.period.PostLocal(5, 3), eq.period.Growing(2), eq.period.QSR(base=3, alpha=0.2), eq.period.Every(3)]
)
def test_goes_on_from_any_step(period: eq.period.Period) -> None:
    falling = lambda step: 0.1 * (1 - step / 60)  # noqa: E731
    undisturbed, end = rounds(period, 40, lr=falling)
    for stop in range(1, 39, 4):
        first, state = rounds(period, stop, lr=falling)
        second, other = rounds(period, 40, lr=falling, saved=state, begin=stop)
        assert first + second == undisturbed
        assert other == end


def test_qsr_follows_the_schedule_of_a_run(tmp_path: Path) -> None:
    run = toy.train(
        eq.period.QSR(base=2, alpha=0.3), steps=40, scheduler=lambda o: LRSchedule(o, "cosine"), out=tmp_path / "run"
    )
    assert 0 < run.result["rounds"] < 12
    constant = toy.train(eq.period.QSR(base=2, alpha=0.3), steps=40).result["rounds"]
    assert run.result["rounds"] < constant == 20


@dataclass
class Listed(eq.period.Period):
    """Rounds after these steps."""

    ends: tuple[int, ...] = ()

    def init_state(self) -> None: ...

    def due(self, clock: Clock) -> bool:
        return clock.step + 1 in self.ends


@pytest.mark.parametrize("weights", ["size", "samples"])
def test_a_run_that_ends_within_h_steps_of_qsr_returns_what_a_last_round_would(weights: str) -> None:
    """13 steps with H = 4 and unequal batches: the mean that is returned is that of rounds after 4, 8, 12 and 13."""
    data = torch.randn(13 * 8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(13.0 * 8)[:, None] / 50

    def train(period: eq.period.Period) -> eq.Run:
        torch.manual_seed(0)
        return eq.train(
            nn.Linear(3, 1),
            nn.MSELoss(),
            data,
            workers=2,
            steps=13,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
            partition=eq.partition.Stratified(speeds=[1.0, 3.0]),
            batch=eq.batch.Proportional(4),
            sync=eq.sync.PeriodicAverage(weights=weights),
            period=period,
        )

    ends, listed = train(eq.period.QSR(base=4, alpha=0.1)), train(Listed(ends=(4, 8, 12, 13)))
    assert (ends.result["rounds"], listed.result["rounds"]) == (3, 4)
    assert ends.result["consensus"] > 1e-3
    for own, expected in zip(ends.model.parameters(), listed.model.parameters(), strict=True):
        assert torch.allclose(own, expected, rtol=1e-6, atol=1e-7)


def test_h_counts_optimizer_steps_and_not_micro_batches() -> None:
    counts = {toy.train(eq.period.Every(4), steps=16, micro=micro).result["rounds"] for micro in (None, 2)}
    assert counts == {4}
