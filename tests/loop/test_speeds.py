"""Measured speeds, and what follows for batch sizes and time."""

from __future__ import annotations

import time
from typing import Any

import pytest

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.loop.speeds import Work


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
