"""LGRAWA in complete runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.sync import LGRAWA, MGRAWA

from ..contract import toy
from .checks import same_on_processes, sends_what_cost_declares


def test_layers_are_parameter_tensors_each_with_its_weight() -> None:
    shares: list[np.ndarray] = []

    def loop(comm: Comm) -> None:
        model = toy.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with eq.attach(model, optimizer, sync=LGRAWA(pull=0.5), period=eq.period.Every(2)) as together:
            for step in range(4):
                part = slice(40 * comm.rank + 8 * step, 40 * comm.rank + 8 * step + 8)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(toy.INPUTS[part]), toy.TARGETS[part]).backward()
                optimizer.step()
            assert together.sync.num_weights == len(list(model.parameters())) == 4
            assert together.comm.ledger.messages == 2 * 2 * 3  # two rounds, one collective each
            shares.append(together.sync.own_weights.numpy())

    eq.spawn(loop, 4, virtual=True)
    table = np.stack(shares)
    np.testing.assert_allclose(table.sum(0), 1.0, rtol=1e-6)
    assert np.ptp(table, axis=1).max() > 0.01, "layers lean to different workers"


def test_a_layer_without_a_gradient_is_averaged() -> None:
    """As an unused head: its norm is zero on all workers alike."""

    def loop(comm: Comm) -> Any:
        model = nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1)]).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with eq.attach(model, optimizer, sync=LGRAWA(pull=1.0)):
            with torch.no_grad():
                model[1].weight.fill_(float(comm.rank))
            optimizer.zero_grad()
            model[0](torch.full((2, 3), 1.0 + comm.rank, dtype=torch.float64)).square().sum().backward()
            optimizer.step()
        return model[1].weight.detach().numpy()

    for sums in eq.spawn(loop, 3, virtual=True):
        np.testing.assert_allclose(sums, np.ones((1, 3)), atol=1e-12)


def test_is_another_method_than_mgrawa_in_a_run() -> None:
    runs = [toy.train(sync, period=4, steps=60).result for sync in (LGRAWA(), MGRAWA())]
    assert runs[0]["params_sha256"] != runs[1]["params_sha256"]
    assert all(set(run["models"]) == {"local", "mean", "centre"} for run in runs)


def test_costs_resumes_and_runs_on_processes() -> None:
    sends_what_cost_declares(LGRAWA(), period=2)
    same_on_processes(LGRAWA(), period=2)
