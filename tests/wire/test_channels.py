"""What channels promise: nothing is lost by error feedback, all workers receive the same, replicas agree."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.context import Context
from equipoise.core.errors import NonFinite
from equipoise.core.vector import Flat
from equipoise.wire.base import Wire
from equipoise.wire.replicas import consensus_step, relative_error

from ..sync.quadratic import Problem, error, solve

W = eq.wire
LOSSY = [
    W.BFloat16(),
    W.Float16(),
    W.Int8(block=32),
    W.Int4(block=32),
    W.Int4(block=32, rounding="stochastic"),
    W.Sign(block=32),
    W.TopK(keep=0.1, block=64),
    W.TopK(keep=0.1, block=64, values=32),
    W.Dct(keep=0.1, block=64, chunk=16, feedback=1.0),
    W.TopK(keep=0.1, block=16, reduce="all-to-all"),
    W.RandomK(keep=0.1),
    W.PowerSGD(rank=1),
]
EXACT = [W.TopK(keep=1.0, values=32), W.RandomK(keep=1.0), W.PowerSGD(rank=64), W.Dct(keep=1.0, values=32)]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(13, 17), nn.Linear(17, 3))


def summed(wire: Wire, rounds: int, workers: int = 3, *, feedback: bool = True) -> list[tuple[Any, ...]]:
    """What each worker put in, received, and has left, after so many sums of random vectors."""

    def loop(comm: Comm) -> tuple[Any, ...]:
        flat = Flat(model())
        channel = wire.bind(Context(comm, flat=flat)).sums("test", feedback=feedback)
        generator = torch.Generator().manual_seed(comm.rank)
        given, received = torch.zeros(len(flat)).double(), torch.zeros(len(flat)).double()
        for number in range(rounds):
            vector = torch.randn(len(flat), generator=generator)
            total, (weight,) = channel.sum(vector, [1.0 + comm.rank])
            assert weight == sum(1.0 + p for p in range(comm.size))
            assert channel.count == number + 1
            given += vector
            received += total
        left = torch.zeros_like(given)
        if channel.feedback:
            assert channel.residual is not None
            left += channel.residual
            if 0 in channel.sum_residuals:  # of the rows that this rank coded again
                length, parts = wire.divided(len(flat), comm.size)  # type: ignore[attr-defined]
                first, last = parts[comm.rank]
                left[first * length : last * length] += channel.sum_residuals[0]
        return given, received, left

    return eq.spawn(loop, workers, virtual=True)


@pytest.mark.parametrize("wire", LOSSY, ids=repr)
def test_what_was_decoded_and_what_is_left_is_what_was_put_in(wire: Wire) -> None:
    rows = summed(wire, rounds=25)
    given, left = sum(row[0] for row in rows), sum(row[2] for row in rows)
    for _, received, _ in rows:
        assert torch.equal(received, rows[0][1]), "workers received different sums"
    # 25 rounds of float32 additions to residuals of some tens.
    assert torch.allclose(rows[0][1] + left, given, atol=25 * 3 * 64 * 2.0**-24)
    assert not torch.allclose(rows[0][1], given, atol=1e-3 if wire.dense else 0.5), "nothing was left out at all"


@pytest.mark.parametrize("wire", EXACT, ids=repr)
def test_the_limits_are_float32(wire: Wire) -> None:
    rows = summed(wire, rounds=5)
    assert torch.allclose(rows[0][1], sum(row[0] for row in rows), atol=5e-5)


@pytest.mark.parametrize("wire", [W.Int8(), W.TopK(), W.RandomK(), W.PowerSGD(rank=1)], ids=repr)
def test_a_sum_may_be_spread_over_steps(wire: Wire) -> None:
    """Also that of a part of the model without a matrix, which takes fewer exchanges."""

    def loop(comm: Comm) -> bool:
        flat = Flat(model())
        channel = wire.bind(Context(comm, flat=flat)).sums("test")
        other = wire.bind(Context(comm, flat=flat)).sums("test")
        for start, stop in ((0, len(flat)), (13 * 17, 13 * 17 + 17)):
            vector = torch.randn(stop - start, generator=torch.Generator().manual_seed(comm.rank))
            channel.begin(vector, [1.0], start)
            for elapsed in (0.25, 0.5, 0.75, 0.9):
                channel.advance(elapsed)
            assert channel.in_flight
            assert torch.equal(channel.end()[0], other.sum(vector, [1.0], start)[0])
            assert not channel.in_flight
        return True

    assert all(eq.spawn(loop, 3, virtual=True))


@pytest.mark.parametrize("wire", [W.Int8(), W.TopK(), W.RandomK(), W.PowerSGD()], ids=repr)
def test_not_a_number_is_refused_by_all_workers_alike(wire: Wire) -> None:
    def loop(comm: Comm) -> str:
        flat = Flat(model())
        channel = wire.bind(Context(comm, flat=flat)).sums("test")
        vector = torch.ones(len(flat))
        channel.sum(vector, [1.0])
        if comm.rank == 1:
            vector[-1] = torch.nan  # one element, which a sparse message might leave out
        with pytest.raises(NonFinite, match="NaN or infinite"):
            channel.sum(vector, [1.0])
        return "refused"

    assert eq.spawn(loop, 3, virtual=True) == ["refused"] * 3


# -- training ----------------------------------------------------------------------------------------------------------
PROBLEM = Problem.make(3, dim=24)
RATE = 0.3 / PROBLEM.smoothness


@pytest.mark.parametrize("wire", [W.Sign(block=8), W.TopK(keep=0.1)], ids=repr)
def test_gradients_with_error_feedback_reach_the_optimum_and_without_it_do_not(wire: Wire) -> None:
    """Differences of workers' gradients do not vanish at the optimum, so a biased code moves it."""
    coded, blind = wire, dataclasses.replace(wire, feedback=0.0)
    with_feedback, without = (solve(PROBLEM, eq.sync.AllReduce(), steps=120, lr=RATE, wire=w) for w in (coded, blind))
    assert error(PROBLEM, with_feedback) < 0.4 * error(PROBLEM, without)


@pytest.mark.parametrize("wire", [W.Sign(block=8), W.TopK(keep=0.2)], ids=repr)
def test_tracking_over_replicas_reaches_the_optimum(wire: Wire) -> None:
    """Compressed gossip is exact in the limit: distances to replicas vanish."""
    problem = Problem.make(4, dim=12)
    lr = 0.3 / problem.smoothness
    plain = error(problem, solve(problem, eq.sync.DPSGD(), steps=100, lr=lr))
    assert error(problem, solve(problem, eq.sync.DSGT(), steps=300, lr=lr, wire=wire)) < 0.02 * plain


@pytest.mark.parametrize("sync", [eq.sync.D2(), eq.sync.EDM(), eq.sync.DeTAG(), eq.sync.RelaySGD()], ids=repr)
def test_exact_methods_stay_exact_with_four_bits(sync: eq.sync.Sync) -> None:
    points = solve(PROBLEM, sync, steps=200, lr=RATE, wire=W.Int4(block=8))
    assert error(PROBLEM, points) < 1e-3


@pytest.mark.parametrize("sync", [eq.sync.D2(), eq.sync.EDM(), eq.sync.DeTAG(), eq.sync.RelaySGD()], ids=repr)
def test_a_sparse_wire_is_refused_where_what_it_leaves_out_grows(sync: eq.sync.Sync) -> None:
    with pytest.raises(ValueError, match="top-k.*use bfloat16, float16, int4, int8 or float32"):
        solve(PROBLEM, sync, steps=1, lr=RATE, wire=W.TopK())


@pytest.mark.parametrize("wire", [W.Sign(block=8), W.TopK(keep=0.2)], ids=repr)
def test_replicas_reach_consensus_and_keep_the_mean(wire: Wire) -> None:
    """Workers start apart (by one step of their own), then only gossip."""
    means, spreads = [], []

    def watch(step: int, attached: Any, x: np.ndarray) -> None:
        rows = np.stack(attached.comm.gather_objects(x))
        if attached.comm.rank == 0 and step in (0, 249):
            means.append(rows.mean(0))
            spreads.append(np.abs(rows - rows.mean(0)).max())

    def rate_of_step(optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 0.0

    def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=lr)
        optimizer.register_step_post_hook(lambda o, *_: rate_of_step(o))
        return optimizer

    solve(PROBLEM, eq.sync.DPSGD(), steps=250, lr=RATE, wire=wire, optimizer=sgd, on_step=watch)
    assert spreads[1] < 0.02 * spreads[0], spreads
    # Replicas are float32: a round moves the mean by their rounding at most.
    assert np.abs(means[1] - means[0]).max() < 250 * 2.0**-24


def test_the_consensus_step_follows_what_a_wire_leaves_out() -> None:
    shapes = ((64, 64),)
    errors = [relative_error(wire, shapes) for wire in (W.Float32(), W.Int8(), W.Int4(), W.Sign(), W.TopK())]
    assert errors == sorted(errors)
    assert errors[0] == 0.0
    assert errors[-1] < 1.0
    steps = [consensus_step(each, 4 / 3) for each in errors]
    assert steps[:3] == [1.0, 1.0, 1.0]
    assert 0.0 < steps[4] < steps[3] < 1.0


# -- another number of workers -----------------------------------------------------------------------------------------
def test_residuals_start_anew_on_another_number_of_workers(tmp_path: Any) -> None:
    from equipoise.testing import toy

    wire = W.TopK(keep=0.25, block=32, residual="feedback")
    sync = eq.sync.PeriodicAverage()
    toy.train(sync, wire=wire, steps=9, out=tmp_path, checkpoint_every=1000)
    resumed = toy.train(sync, wire=wire, steps=40, workers=3, out=tmp_path, resume=True, checkpoint_every=1000).result
    assert resumed["steps"] == 40
    assert resumed["consensus"] < 1e-6, "all workers hold the average again"
