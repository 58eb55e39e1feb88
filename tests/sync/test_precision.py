"""Exact methods stay exact in single precision, and trackers keep their mean where the model is bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.core.vector import ModelSize
from equipoise.sync import D2, DSGT, EDM, KGT, DeTAG

from .checks import mild
from .quadratic import Problem, error, solve

METHODS: list[tuple[Any, Callable[[Any], torch.Tensor]]] = [  # a method, and what sums to zero over workers
    (D2(), lambda s: s.correction),
    (EDM(beta=0.5), lambda s: s.correction),
    (KGT(), lambda s: s.correction),
    (DSGT(), lambda s: s.tracker - s.gradient_before),
    (DeTAG(), lambda s: s.scheme.imbalance()),
    (DeTAG(frozen=True), lambda s: s.scheme.imbalance()),
]
every_method = pytest.mark.parametrize(("sync", "zero"), METHODS, ids=[type(s).__name__ for s, _ in METHODS])


def run(
    sync: Any, zero: Callable[[Any], torch.Tensor], steps: int, dtype: torch.dtype, away: float
) -> tuple[float, float]:
    """Distance from the optimum and from zero, relative to the distance of the problem from zero."""
    problem = mild(4)
    problem = Problem(problem.matrices, problem.centres + away)
    sums = np.zeros(5)

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        if step == steps - 1:
            assert zero(together.sync).dtype == torch.float32
            sums[:] += zero(together.sync).double().numpy()

    points = solve(problem, sync, steps=steps, lr=0.1 / problem.smoothness, dtype=dtype, on_step=on_step)
    return error(problem, points) / away, np.abs(sums).max() / away


@every_method
def test_long_runs_in_float32_stay_at_the_optimum(sync: Any, zero: Callable[[Any], torch.Tensor]) -> None:
    """A rounding error that stays would move the resting point by error / lr in every step."""
    distance, total = run(sync, zero, 300, torch.float32, 100.0)
    assert distance < 5e-6
    assert total < 5e-6  # nothing re-centres: rounding errors of the sum are as likely up as down


@every_method
def test_trackers_of_bfloat16_models_are_float32(sync: Any, zero: Callable[[Any], torch.Tensor]) -> None:
    distance, total = run(sync, zero, 60, torch.bfloat16, 1.0)
    assert total < 2e-5
    assert distance < 0.1
    sent = sync.cost(ModelSize(5, 2), 0, 4, True)[1]
    assert sent == (20 if sync.vectors == 1 else 80)


def test_gradients_of_a_phase_on_bfloat16_models_are_summed_in_float32() -> None:
    kinds = set()

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        kinds.update({together.sync.scheme.gathered.dtype, together.sync.scheme.gathered_before.dtype})

    solve(mild(4), DeTAG(frozen=True), steps=4, lr=0.1, dtype=torch.bfloat16, on_step=on_step)
    assert kinds == {torch.float32}


def test_momentum_of_bfloat16_models_is_float32() -> None:
    """EDM adds a tenth of each gradient: half of the bits of bfloat16 would be lost."""
    kinds = set()
    solve(
        mild(4), EDM(), steps=2, lr=0.1, dtype=torch.bfloat16, on_step=lambda _, t, x: kinds.add(t.sync.momentum.dtype)
    )
    assert kinds == {torch.float32}
