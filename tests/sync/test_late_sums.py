"""MGRAWA and LGRAWA with a delay: the sums of a round travel during local steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.core.errors import UserError
from equipoise.sync import LGRAWA, MGRAWA

from ..contract import toy
from .checks import resumes_from_any_step, same_on_processes
from .quadratic import Problem, solve
from .test_gradient_weighted import drawn, run_rounds


def by_hand(problem: Problem, lr: float, period: int, steps: int, pull: float, delay: int, prox: float) -> np.ndarray:
    """The weights are those of the gradients before the message; the pull is that of the models in it."""
    x = np.zeros_like(problem.centres)
    centre, sent = x[0], None
    for step in range(1, steps + 1):
        g = np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        if step > period:
            x = x + prox / period * (centre - x)
        x = x - lr * g
        if sent is not None and step == sent[0] + delay:
            _, models, share = sent
            centre = share @ models
            x = x + pull * (centre - models)
            sent = None
        if step % period == 0:
            inverse = 1 / np.linalg.norm(g, axis=1)
            sent = step, x.copy(), inverse / inverse.sum()
    return x


@pytest.mark.parametrize(("pull", "delay", "prox"), [(1.0, 1, 0.0), (0.6, 2, 0.0), (0.6, 3, 0.3)])
@pytest.mark.parametrize("cls", [MGRAWA, LGRAWA])
def test_a_late_pull_is_its_equations(cls: Any, pull: float, delay: int, prox: float) -> None:
    problem = Problem.make(3)
    sync = cls(pull=pull, delay=delay, prox=prox, source="last", smoothing=0.0)
    points = solve(problem, sync, steps=22, lr=0.05, period=4)
    np.testing.assert_allclose(points, by_hand(problem, 0.05, 4, 22, pull, delay, prox), atol=1e-12)


def test_the_centre_is_that_of_the_models_that_were_sent() -> None:
    seen: dict[int, dict[int, Any]] = {0: {}, 1: {}}

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        sync = together.sync
        seen[together.comm.rank][step] = x, sync.centre().numpy().copy(), sync.own_weights.numpy().copy()
        assert together.clock.rounds == max(0, (step - 1) // 3)  # counted when it arrives, two steps after it was sent

    solve(Problem.make(2), LGRAWA(delay=2), steps=9, lr=0.05, period=3, on_step=on_step)
    shares = [seen[rank][7][2] for rank in (0, 1)]
    assert sum(shares) == pytest.approx(1.0)
    expected = sum(share * seen[rank][5][0] for rank, share in enumerate(shares))
    for rank in (0, 1):
        np.testing.assert_allclose(seen[rank][7][1], expected, atol=1e-12)
        np.testing.assert_array_equal(seen[rank][6][1], seen[rank][5][1])  # nothing has arrived


def test_sums_in_flight_survive_a_checkpoint_and_are_the_same_on_processes() -> None:
    for sync in (MGRAWA(delay=2), LGRAWA(delay=1, pull=1.0), LGRAWA(delay=1, exponent=16.0)):
        resumes_from_any_step(sync, period=3, steps=14, stops=(3, 4, 6, 8, 10))
        same_on_processes(sync, period=3, steps=11)


@pytest.mark.parametrize("cls", [MGRAWA, LGRAWA])
def test_a_late_round_costs_what_it_declares(cls: Any) -> None:
    for wire in (None, eq.wire.Int8()):

        def on_step(step: int, together: Any, x: np.ndarray) -> None:
            comm, sync = together.comm, together.sync
            cost = sync.cost(sync.context.model_size, comm.rank, 3, True)
            arrived = max(0, step // 3)  # sent after steps 2, 5, 8 and counted one later
            assert (comm.ledger.messages, comm.ledger.bytes) == (arrived * cost[0], arrived * cost[1])
            assert sync.cost(sync.context.model_size, comm.rank, 3, False) == (0, 0)

        solve(Problem.make(3), cls(delay=1), steps=11, lr=0.05, period=3, wire=wire, on_step=on_step)


def test_through_a_wire_it_is_nearly_the_same() -> None:
    problem = Problem.make(3)
    plain, coded = (
        solve(problem, LGRAWA(delay=1, pull=1.0), steps=40, lr=0.05, period=3, wire=wire)
        for wire in (None, eq.wire.Int8())
    )
    assert 0 < np.abs(plain - coded).max() < 0.02 * np.abs(plain).max()


def test_a_model_that_is_not_finite_takes_the_centre_when_it_arrives() -> None:
    models, norms = drawn()
    models[3, 5] = np.nan
    first = run_rounds(Due(MGRAWA(pull=0.5, delay=1)), models, norms, rounds=2)
    clean = run_rounds(MGRAWA(pull=0.5), models[:3], norms[:3])
    np.testing.assert_allclose(first.x[:3], clean.x, atol=1e-12)
    np.testing.assert_allclose(first.x[3], clean.centre[0], atol=1e-12)


class Due:
    """A sync whose first step has a round and whose second has none; workers start from zero."""

    def __init__(self, sync: Any):
        self.sync = sync

    def bind(self, context: Any) -> Any:
        bound = self.sync.bind(context)
        bound.centre_model = torch.zeros_like(context.flat.x)
        after = bound.after_step

        def after_step(x: Any) -> None:
            context.clock.due = not bound.late.arrive
            after(x)

        bound.after_step = after_step
        return bound


def test_rounds_take_no_time_that_steps_can_hide() -> None:
    """A step takes at most 8 ms, a round two messages of 3 ms: with a delay of two steps nobody waits."""
    cluster = eq.Cluster([1000.0] * 4, eq.Link(1e9, 3e-3))
    times = [
        toy.train(MGRAWA(delay=delay), workers=4, period=3, steps=12, cluster=cluster).result["simulated_seconds"]
        for delay in (0, 2)
    ]
    assert times[1] <= 12 * 8e-3
    assert times[0] > times[1] + 4 * 6e-3


def test_delays_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="shorter than the period"):
        solve(Problem.make(2), MGRAWA(delay=3), steps=9, lr=0.1, period=2)
    with pytest.raises(UserError, match="period every"):
        toy.train(LGRAWA(delay=1), period=eq.period.TotalSteps(4), steps=8)
