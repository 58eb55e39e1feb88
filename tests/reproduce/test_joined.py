"""Passes that are computed as one give what separate workers give."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.data.base import Arrays
from equipoise.order import Order
from equipoise.reproduce.joined import Joined

EPOCHS = 4


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def problem(examples: int) -> Arrays:
    rng = np.random.default_rng(0)
    return Arrays(torch.from_numpy(rng.standard_normal((examples, 6))), torch.from_numpy(rng.integers(0, 3, examples)))


@pytest.mark.parametrize(
    ("order", "batch", "learns"),
    [
        (eq.order.Reshuffle(), 1, 0),
        (eq.order.Reshuffle(), 3, 0),
        (eq.order.CDGraB(signal="exact"), 1, EPOCHS),
        (eq.order.IDGraB(signal="exact"), 1, EPOCHS),
        (eq.order.CDGraB(signal="projection", every=2), 1, EPOCHS // 2),
        (eq.order.CDGraB(signal="last-layer", every=1), 3, EPOCHS),
        (eq.order.CDGraB(), 3, 1),  # sketches of so short an epoch are many, compared with its all-reduces
    ],
    ids=repr,
)
def test_joined_passes_end_where_separate_workers_do(order: Order, batch: int, learns: int) -> None:
    data, sgd = problem(4 * 15), partial(torch.optim.SGD, lr=0.3, momentum=0.5)  # 15: one example has no pair
    loss = nn.CrossEntropyLoss()
    separate = eq.train(
        network, loss, (data.x, data.y), optimizer=sgd, workers=4, epochs=EPOCHS, order=order, batch=batch, seed=5
    )
    ends: list[torch.Tensor] = []
    learned: list[bool] = []

    def after_epoch(model: nn.Module, learning: bool) -> None:
        ends.append(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
        learned.append(learning)

    Joined(network, loss, data, sgd, workers=4, batch=batch).train(order, EPOCHS, 5, after_epoch)
    expected = nn.utils.parameters_to_vector(separate.model.parameters()).detach()
    assert len(ends) == EPOCHS
    assert sum(learned) == learns
    torch.testing.assert_close(ends[-1], expected, rtol=0, atol=1e-12)
    assert float((ends[-1] - ends[-2]).abs().max()) > 1e-3  # it moves: other orders would end elsewhere
