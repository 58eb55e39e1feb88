"""SAM: the gradient at the worst point nearby."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.loop.sharpness import sharpness_aware
from equipoise.simulate.cluster import Cluster

from ..contract import toy


def test_on_a_quadratic_by_hand() -> None:
    """f = 1/2 sum h x^2: g = h x, e = rho g / |g|, g' = h (x + e)."""
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    curvature = torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64)
    start = model.weight.detach().clone()

    def gradient() -> None:
        model.zero_grad()
        (0.5 * curvature * model.weight.square()).sum().backward()

    gradient()
    g = curvature * start
    sharpness_aware(model, 0.1, gradient)
    assert torch.equal(model.weight.detach(), start)
    assert model.weight.grad is not None
    assert torch.allclose(model.weight.grad, curvature * (start + 0.1 * g / g.norm()), rtol=1e-12)


def test_batchnorm_sees_the_batch_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    once = copy.deepcopy(model)

    def gradient(net: nn.Module = model) -> None:
        net.zero_grad()
        nn.functional.cross_entropy(net(toy.INPUTS[:16]), toy.TARGETS[:16]).backward()

    gradient()
    gradient(once)
    sharpness_aware(model, 0.5, gradient)
    for mine, other in zip(model.buffers(), once.buffers(), strict=True):
        assert torch.equal(mine, other)
    assert not torch.equal(model[0].weight.grad, once[0].weight.grad)
    assert model[1].momentum == 0.1


def test_at_a_minimum_there_is_nowhere_to_climb() -> None:
    model = nn.Linear(2, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    model(torch.ones(1, 2)).square().sum().backward()
    sharpness_aware(model, 0.1, lambda: pytest.fail("no second pass"))


@pytest.mark.parametrize("sync", [eq.sync.AllReduce(), eq.sync.LGRAWA()], ids=["all-reduce", "lgrawa"])
def test_in_a_run_it_costs_two_gradients_and_nothing_on_the_wire(sync: Any) -> None:
    cluster = Cluster([1000.0] * 4)
    plain, sharp = (toy.train(sync, cluster=cluster, sam=sam).result for sam in (None, 0.05))
    assert sharp["bytes"] == plain["bytes"]
    assert sharp["simulated_seconds"] == pytest.approx(2 * plain["simulated_seconds"])
    assert sharp["params_sha256"] != plain["params_sha256"]
    assert sharp["models"]["mean"]["loss"] == pytest.approx(plain["models"]["mean"]["loss"], rel=0.2)


def test_micro_batches_change_nothing_but_rounding() -> None:
    model = lambda: nn.Sequential(nn.Linear(8, 4))  # noqa: E731
    runs = [
        eq.train(model, nn.CrossEntropyLoss(), (toy.INPUTS, toy.TARGETS), steps=5, batch=32, sam=0.1, micro=micro)
        for micro in (None, 8)
    ]
    losses = [run.result["models"]["mean"]["loss"] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
