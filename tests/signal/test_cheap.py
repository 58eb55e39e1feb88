"""The cheap signals: sketches that keep products on average, the last layer, and gradients of groups."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.context import Context
from equipoise.launch.current import current_comm
from equipoise.signal import restored
from equipoise.signal.base import Signal, View

from . import models


def seen(signal: Signal, model: nn.Module, inputs: torch.Tensor, seed: int = 0, passes: int = 1) -> View:
    bound = signal.bind(Context(current_comm(), seed=seed))
    model.zero_grad()
    for part in inputs.chunk(passes):
        with bound.watching(model, len(part)):
            (models.loss(model(part)) * len(part) / len(inputs)).backward()
    return bound.view()


@pytest.mark.parametrize("name", ["linear", "linear on words", "convolution", "embedding", "attention"])
def test_a_projection_keeps_products_on_average(name: str) -> None:
    """Over 300 draws: the Gram matrix of the layers that are sketched, within what is left of the noise."""
    torch.manual_seed(3)
    make, draw = models.CASES[name]
    model, inputs = make(), draw(6)
    grams = [seen(eq.signal.Projection(width=6), model, inputs, seed).gram() for seed in range(300)]
    mean = torch.stack(grams).mean(0)
    rows = models.gradients(model, inputs)
    if name == "attention":
        rows[:, :16] = 0  # LayerNorm and a small map on every word: few numbers, much work, left out
        rows[:, -64:] = 0
    true = rows @ rows.T
    assert float((mean - true).norm() / true.norm()) < 0.25


def test_projections_depend_on_the_seed_alone() -> None:
    torch.manual_seed(3)
    model, inputs = nn.Linear(7, 5), torch.randn(6, 7)
    one, two, other = (seen(eq.signal.Projection(), model, inputs, seed) for seed in (0, 0, 1))
    assert torch.equal(one.gram(), two.gram())
    assert not torch.equal(one.gram(), other.gram())
    split = seen(eq.signal.Projection(), model, inputs, 0, passes=2)
    torch.testing.assert_close(split.gram(), one.gram())


def test_the_last_layer_is_seen_exactly() -> None:
    torch.manual_seed(3)
    model, inputs = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)), torch.randn(6, 7)
    rows = models.gradients(model, inputs)[:, 7 * 9 + 9 :]
    for passes in (1, 3):
        view = seen(eq.signal.LastLayer(), model, inputs, passes=passes)
        torch.testing.assert_close(view.gram(), rows @ rows.T)
        torch.testing.assert_close(view.vectors(torch.eye(6)), rows)
        assert restored(view.state()).items == 6


def test_the_last_layer_of_words_is_sketched() -> None:
    view = seen(eq.signal.LastLayer(width=4), models.CASES["linear on words"][0](), torch.randn(6, 4, 7))
    assert view.dimension == 16


def test_groups_are_seen_by_the_gradient_of_their_pass() -> None:
    torch.manual_seed(3)
    model, inputs = nn.Sequential(nn.Linear(7, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2)), torch.randn(6, 7)
    rows = models.gradients(model.eval(), inputs)
    view = seen(eq.signal.GroupGradient(2), model, inputs, passes=3)
    assert view.sizes == [2, 2, 2]
    torch.testing.assert_close(view.vectors(torch.eye(3)), torch.stack([rows[i : i + 2].mean(0) for i in (0, 2, 4)]))
