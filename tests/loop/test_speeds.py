"""Measured speeds, and what follows for batch sizes and time."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.comm.current import current_comm
from equipoise.core.errors import UserError
from equipoise.loop import speeds as speeds_module
from equipoise.loop.speeds import Timing, Work, balanced_rates, repeated_job_rates, repeated_rates, settled_rates

from .faults import job


def test_slower_steps_are_slower() -> None:
    """Sleeps of 4 and 16 ms; a busy machine adds to both, so the bounds are wide."""

    def work(comm: Any) -> list[float]:
        return eq.measure_speeds(lambda: time.sleep(0.004 * (1 + 3 * comm.rank)), comm=comm, steps=2, warmup=1)

    one, two = eq.spawn(work, 2)
    assert one == two
    assert one[1] == 1.0
    assert 2 < one[0] < 6


def test_examples_count() -> None:
    """Twice the examples in the same time is twice the speed."""

    def work(comm: Any) -> list[float]:
        return eq.measure_speeds(lambda: time.sleep(0.005), examples=1 + comm.rank, comm=comm, steps=2)

    found = eq.spawn(work, 2)[0]
    assert 1.3 < found[1] / found[0] < 3


@pytest.mark.parametrize("options", [{"steps": 0}, {"repetitions": 0}, {"warmup": -1}, {"examples": 0}])
def test_impossible_measurements_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        eq.measure_speeds(lambda: None, **options)


def test_batch_sizes() -> None:
    assert eq.batch_sizes([1, 2, 4, 8], 30) == [8, 16, 32, 64]
    assert eq.batch_sizes([1, 1, 1], 32) == [32, 32, 32]
    assert sum(eq.batch_sizes([1, 2, 4, 8], 17)) == 68
    assert eq.batch_sizes([1, 1000], 2) == [1, 3]
    assert eq.batch_sizes([3, 6], 32) == eq.batch_sizes([1, 2], 32)
    with pytest.raises(UserError, match="speed 0"):
        eq.batch_sizes([0, 1], 8)
    with pytest.raises(UserError, match="at least one example"):
        eq.batch_sizes([1, 1], 0.5)


def test_a_slower_machine_takes_longer_for_its_work_and_not_for_its_waits() -> None:
    work = Work()
    time.sleep(0.1)  # as while others keep the processor busy
    waited = time.perf_counter()
    work.slow_down(11.0)
    assert time.perf_counter() - waited < 0.5, "0.1 s on the clock would make it a second"
    work = Work()
    while time.process_time() - work.worked < 0.03:
        pass
    waited = time.perf_counter()
    work.slow_down(3.0)
    assert time.perf_counter() - waited >= 0.06


def test_batches_of_equal_time_where_a_step_has_a_fixed_cost() -> None:
    """Workers 1, 2, 4 and 8 times as fast; a step costs as much as 18 examples whatever its batch."""
    slow = [8.0, 4.0, 2.0, 1.0]
    times = [[0.001 * s * (18 + b) for s in slow] for b in (64, 16)]
    rates = balanced_rates(64, 16, *times)
    total = (256 + 4 * 18) / sum(1 / s for s in slow)  # by hand: s (18 + b) = T, sum b = 256
    expected = [total / s - 18 for s in slow]
    assert [rate / sum(rates) for rate in rates] == pytest.approx([b / 256 for b in expected])
    assert rates == pytest.approx([b / (0.001 * total) for b in expected]), "examples per second at these batches"
    assert balanced_rates(8, 2, [0.001 * s * 26 for s in slow], [0.001 * s * 20 for s in slow])[0] > 0, (
        "none is left out"
    )
    plain = balanced_rates(64, 16, [0.064 * s for s in slow], [0.016 * s for s in slow])
    assert plain == pytest.approx([1000 / s for s in slow]), "without a fixed cost: the rates as measured"
    noise = balanced_rates(64, 16, [0.01, 0.02], [0.011, 0.02])
    assert all(0 < rate < math.inf for rate in noise), "a small batch that took longer than a large one"


def test_each_worker_is_measured_at_the_batch_that_it_will_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where batches follow the rates; twice, since the first steps of a process are slower."""
    slow, warm = [4.0, 1.0], iter([3.0, 1.0, 1.0])

    def rates(job: Any, comm: Any, batch: int | None = None) -> list[float]:
        size = 64 if batch is None else batch
        factor = next(warm)
        return [size / (0.001 * s * (18 + size) * factor) for s in slow]

    monkeypatch.setattr(speeds_module, "job_rates", rates)
    real: Any = SimpleNamespace(virtual=False)
    found = settled_rates(SimpleNamespace(batch=eq.batch.Proportional(64)), real)  # type: ignore[arg-type]
    total = (128 + 2 * 18) / sum(1 / s for s in slow)  # s (18 + b) = T, sum b = 128
    assert found == pytest.approx([(total / s - 18) / (0.001 * total) for s in slow])
    for batch, comm in ((eq.batch.Fixed(64), real), (eq.batch.Proportional(64), SimpleNamespace(virtual=True))):
        warm = iter([1.0])
        alike = settled_rates(SimpleNamespace(batch=batch), comm)  # type: ignore[arg-type]
        assert alike == pytest.approx([64 / (0.082 * s) for s in slow]), "all at the same batch"


def test_a_timing_lasts_as_long_as_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test, which a step advances by 1, 2, ... seconds: the median of the timings counts."""
    clock = {"now": 0.0, "steps": 0.0}

    def step() -> None:
        clock["steps"] += 1
        clock["now"] += clock["steps"]

    monkeypatch.setattr(speeds_module, "time", SimpleNamespace(perf_counter=lambda: clock["now"]))
    (rate,) = repeated_rates(step, 10.0, timing=Timing(warmup=1, steps=2, repetitions=3))
    assert rate.median == pytest.approx(10 / 4.5)  # 2 and 3 seconds, 4 and 5, 6 and 7
    assert rate.spread == pytest.approx((5.5 - 3.5) / 4.5)
    clock["steps"] = 0.0
    (rate,) = repeated_rates(step, 10.0, timing=Timing(warmup=0, steps=1, repetitions=1, seconds=5.0))
    assert rate.median == pytest.approx(10 / 2), "1, 2 and 3 seconds: two steps are too short"


def test_a_machine_three_times_slower_sleeps_twice_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is what the process was busy for, at most the time that passed."""
    clock, slept = SimpleNamespace(passed=0.0, busy=0.0), []
    fake = SimpleNamespace(perf_counter=lambda: clock.passed, process_time=lambda: clock.busy, sleep=slept.append)
    monkeypatch.setattr(speeds_module, "time", fake)
    for passed, busy in ((5.0, 2.0), (1.0, 2.0)):  # others keep the processor busy; two threads
        clock.passed = clock.busy = 0.0
        work = Work()
        clock.passed, clock.busy = passed, busy
        work.slow_down(3.0)
        work.slow_down(1.0)
    assert slept == [4.0, 2.0]


def test_measuring_draws_nothing_of_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that is timed has a model of its own, whose parameters are drawn."""
    comm, before = current_comm(), torch.get_rng_state()
    monkeypatch.setattr(type(comm), "virtual", False)
    (rate,) = repeated_job_rates(job(eq.sync.AllReduce(), "stop"), comm, Timing(0, 1, 1))
    assert rate.median > 0
    assert torch.equal(torch.get_rng_state(), before)
