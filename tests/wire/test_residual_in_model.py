"""Residuals that stay in the workers' models (error reset): the mean moves as in float32, and nothing else is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.clock import Clock
from equipoise.core.context import Context, WorkerInfo
from equipoise.core.vector import Flat

from ..sync.quadratic import Problem, solve

W, S = eq.wire, eq.sync
WORKERS = 3
SIZES = (1, 2, 5)  # examples of the workers: unequal weights
KEPT = [  # not coded again: a rank that codes sums keeps the residual of these
    W.TopK(keep=0.1, block=64, residual="model"),
    W.TopK(keep=0.1, block=16, values=32, residual="model"),
    W.RandomK(keep=0.1, residual="model"),
    W.PowerSGD(rank=1, residual="model"),
]


class Bound:
    """A sync on random models, without a training loop: each round adds random progress to every model."""

    def __init__(self, sync: Any, wire: Any, comm: Comm):
        model = nn.Sequential(nn.Linear(13, 17), nn.Linear(17, 3))
        self.flat, self.clock, self.comm = Flat(model), Clock(), comm
        torch.manual_seed(7)
        self.x = self.flat.gather()
        self.x.copy_(torch.randn(len(self.flat)))
        worker = WorkerInfo(comm.rank, comm.size, shares=tuple(size / sum(SIZES) for size in SIZES))
        bound = wire.bind(Context(comm, self.clock, worker, flat=self.flat))
        bound.start(self.x)
        self.sync = sync.bind(Context(comm, self.clock, worker, flat=self.flat, wire=bound))
        self.clock.due, self.clock.lr = True, 1.0
        self.generator = torch.Generator().manual_seed(comm.rank)

    def local_step(self, samples: int = 1) -> None:
        self.clock.batch = samples
        self.sync.before_step(self.x, None)
        self.x.add_(torch.randn(len(self.x), generator=self.generator))

    def arrive(self) -> None:
        """A step without progress, in which a delayed message arrives."""
        self.clock.due = False
        plan = self.sync.before_step(self.x, None)
        if plan is not None and plan.message_arrives:
            self.sync.after_step(self.x)
        self.clock.due = True

    def mean(self) -> torch.Tensor:
        rows = self.comm.gather_objects((self.x * self.sync.context.worker.share).double())
        return torch.stack(rows).sum(0)


@pytest.mark.parametrize("wire", KEPT, ids=repr)
@pytest.mark.parametrize(
    "sync",
    [S.PeriodicAverage(), S.DiLoCo(lr=1.0, momentum=0.0), S.DiLoCo(lr=1.0, momentum=0.0, delay=1, fragments=2)],
    ids=["average", "diloco", "delayed"],
)
def test_the_mean_moves_as_in_float32(sync: Any, wire: Any) -> None:
    def loop(comm: Comm) -> tuple[torch.Tensor, torch.Tensor]:
        bound = Bound(sync, wire, comm)
        for _ in range(20):
            bound.local_step()
            before = bound.mean()
            bound.sync.after_step(bound.x)
            bound.arrive()
            # Sums of 3 numbers of some tens, in float32.
            assert torch.allclose(bound.mean(), before, atol=3 * 64 * 2.0**-23)
        channel = bound.sync.averaging.channel
        assert channel.state()["residual"] is None, "the model holds what is not sent"
        common = bound.sync.anchor if isinstance(bound.sync, S.DiLoCo) else channel.reference
        return bound.x.clone(), common.clone()

    rows = eq.spawn(loop, WORKERS, virtual=True)
    assert all(torch.equal(common, rows[0][1]) for _, common in rows), "the common model is not common"
    assert not torch.allclose(rows[0][0], rows[1][0], atol=0.1), "everything was sent"


def test_what_decays_pulls_the_models_together() -> None:
    """x_i <- z + b e_i: with b = 0 all models are equal after a round, with b < 1 they are nearer."""

    def loop(comm: Comm) -> list[float]:
        spreads = []
        for feedback in (0.0, 0.5, 1.0):
            bound = Bound(S.PeriodicAverage(), W.TopK(keep=0.1, block=64, feedback=feedback, residual="model"), comm)
            for _ in range(10):
                bound.local_step()
                bound.sync.after_step(bound.x)
            rows = torch.stack(comm.gather_objects(bound.x))
            spreads.append((rows - rows[0]).norm().item())
        return spreads

    none, some, all_of_it = eq.spawn(loop, WORKERS, virtual=True)[0]
    assert none == 0.0, "models differ"
    assert 0.0 < some < 0.8 * all_of_it


@pytest.mark.parametrize("sync", [S.PeriodicAverage(weights="samples"), S.SlowMo(weights="samples")], ids=repr)
def test_a_worker_without_examples_keeps_what_it_has_not_sent(sync: Any) -> None:
    def loop(comm: Comm) -> bool:
        bound = Bound(sync, W.TopK(keep=0.1, block=64, residual="model"), comm)
        bound.local_step()
        bound.sync.after_step(bound.x)
        channel = bound.sync.averaging.channel

        def common() -> torch.Tensor:
            anchor = getattr(bound.sync, "anchor", None)
            return (channel.reference if anchor is None else anchor).clone()

        unsent = bound.x - common()
        assert unsent.norm() > 1.0
        bound.clock.samples += 1
        if comm.rank == 1:
            bound.clock.batch = 0
            bound.sync.before_step(bound.x, None)
        else:
            bound.local_step()
        bound.sync.after_step(bound.x)
        return comm.rank != 1 or torch.allclose(bound.x - common(), unsent, atol=1e-5)

    assert all(eq.spawn(loop, WORKERS, virtual=True))


PROBLEM = Problem.make(3, dim=24)
RATE = 0.3 / PROBLEM.smoothness


@pytest.mark.parametrize("sync", [S.PeriodicAverage(), S.SlowMo(), S.DiLoCo(), S.DiLoCo(delay=1)], ids=repr)
def test_sending_everything_is_float32(sync: Any) -> None:
    exact = W.TopK(keep=1.0, values=32, residual="model")
    coded, plain = (solve(PROBLEM, sync, steps=12, lr=RATE, period=3, wire=wire) for wire in (exact, None))
    assert np.allclose(coded, plain, atol=1e-5)


def test_few_rounds_end_nearer_to_the_optimum_than_with_error_feedback() -> None:
    """The mean of the models is compared: a residual that waits has not moved it yet."""
    far = {
        residual: np.abs(
            solve(
                PROBLEM,
                S.PeriodicAverage(),
                steps=60,
                lr=RATE,
                period=3,
                wire=W.TopK(keep=1 / 24, values=32, residual=residual),
            ).mean(0)
            - PROBLEM.optimum
        ).max()
        for residual in ("model", "feedback")
    }
    assert far["model"] < 0.5 * far["feedback"], far
