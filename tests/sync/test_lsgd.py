from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.context import Context
from equipoise.core.errors import UserError
from equipoise.core.vector import Flat
from equipoise.sync import LSGD

from .checks import Layers
from .quadratic import Problem, solve


def rounds(
    sync: LSGD, models: np.ndarray, losses: list[list[float]], *, virtual: bool = True, count: int = 1
) -> list[dict[str, Any]]:
    """`count` rounds of workers that start each at `models` and have seen `losses` (a list per worker)."""

    def loop(comm: Comm) -> dict[str, Any]:
        flat = Flat(Layers((models.shape[1],)))
        context = Context(comm, flat=flat)
        bound = sync.bind(context)
        context.clock.batch = 1
        for loss in losses[comm.rank] or [math.nan]:
            context.clock.loss = loss
            bound.before_step(flat.x, None)
        flat.x.copy_(torch.from_numpy(models[comm.rank]))
        sent_per_round = []
        for number in range(count):
            before = comm.ledger.state_dict()
            bound.after_step(flat.x)
            after = comm.ledger.state_dict()
            sent = after["messages"] - before["messages"], after["bytes"] - before["bytes"]
            assert sent == bound.cost(flat.size, comm.rank, comm.size, True, number)
            sent_per_round.append(sent)
        return {
            "x": flat.x.numpy(),
            "leader": bound.leader,
            "sent_per_round": sent_per_round,
            "centre": bound.centre().numpy(),
        }

    return eq.spawn(loop, len(models), virtual=virtual)


MODELS = np.random.default_rng(0).standard_normal((4, 3))
LOSSES = [[5.0, 1.0], [0.5, 1.5], [9.0, 0.9], [2.0, 2.0]]


@pytest.mark.parametrize("virtual", [True, False], ids=["virtual", "processes"])
def test_all_are_pulled_to_the_lowest_mean_loss(virtual: bool) -> None:
    rows = rounds(LSGD(pull=0.25, window=2), MODELS, LOSSES, virtual=virtual)
    assert [row["leader"] for row in rows] == [1] * 4
    for row, model in zip(rows, MODELS, strict=True):
        np.testing.assert_allclose(row["x"], 0.75 * model + 0.25 * MODELS[1], atol=1e-15)
        np.testing.assert_array_equal(row["centre"], MODELS[1])
    np.testing.assert_array_equal(rows[1]["x"], MODELS[1])  # the leader does not move
    # An all-gather of the losses, and a broadcast of the leader's model.
    assert [row["sent_per_round"][0] for row in rows] == [(3, 24), (6, 24 + 3 * 24), (3, 24), (3, 24)]


def test_window_decides_what_counts() -> None:
    assert rounds(LSGD(window=1), MODELS, LOSSES)[0]["leader"] == 2
    assert rounds(LSGD(window=2), MODELS, LOSSES)[0]["leader"] == 1
    assert rounds(LSGD(), MODELS, [[1.0]] * 4)[0]["leader"] == 0  # of equals the first


def test_groups_follow_their_own_leaders_and_sometimes_the_global_one() -> None:
    sync = LSGD(pull=1.0, local_pull=0.5, groups=2, global_every=2, window=2)
    rows = rounds(sync, MODELS, LOSSES)
    assert [row["leader"] for row in rows] == [1, 1, 3, 3]
    np.testing.assert_allclose(rows[0]["x"], 0.5 * (MODELS[0] + MODELS[1]), atol=1e-15)
    np.testing.assert_allclose(rows[2]["x"], 0.5 * (MODELS[2] + MODELS[3]), atol=1e-15)
    # A loss to the one neighbour; the leader's model too. Nothing leaves the group.
    assert [row["sent_per_round"][0] for row in rows] == [(1, 8), (2, 8 + 24), (1, 8), (2, 8 + 24)]
    rows = rounds(sync, MODELS, LOSSES, count=2)
    assert [row["leader"] for row in rows] == [1] * 4
    assert all((row["x"] == MODELS[1]).all() for row in rows)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_worker_without_a_finite_loss_never_leads(bad: float) -> None:
    losses = [[0.1, bad] if bad == math.inf else [], [3.0], [], [2.0]]
    rows = rounds(LSGD(pull=1.0), MODELS, losses)
    assert all((row["x"] == MODELS[3]).all() for row in rows)


def test_a_model_that_is_not_finite_never_leads_and_is_not_spread() -> None:
    models = MODELS.copy()
    models[1, 0] = math.nan
    rows = rounds(LSGD(pull=0.5, window=2), models, LOSSES)
    assert rows[0]["leader"] == 3
    assert all(np.isfinite(rows[rank]["x"]).all() for rank in (0, 2, 3))


def test_a_users_loop_must_set_the_loss() -> None:
    with pytest.raises(UserError, match=r"together\.loss = loss\.item"):
        solve(Problem.make(2), LSGD(), steps=1, lr=0.1, report_loss=False)

    problem = Problem.make(4)

    def report(step: int, together: Any, x: np.ndarray) -> None:
        together.loss = float(step + together.comm.rank)

    def first(comm: Comm) -> None: ...

    points = solve(problem, LSGD(pull=1.0), steps=4, lr=0.01, period=4, on_step=report)
    assert (points == points[0]).all()  # worker 0 leads, all the way


def test_too_many_groups_are_refused() -> None:
    with pytest.raises(UserError, match="at most as many groups as workers"):
        rounds(LSGD(groups=5), MODELS, LOSSES)


def test_leader_of_a_run_is_reported_and_the_centre_evaluated() -> None:
    from ..contract import toy

    result = toy.train(LSGD()).result
    assert result["health"]["leader"] in range(4)
    assert "centre" in result["models"]
