"""GraB: mean balance, with the mean of the last epoch or a running one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equipoise.core.errors import UserError
from equipoise.order import GraB, PairBalance, Reshuffle
from equipoise.signal import Rows

from .drive import bound, floor, least_squares, sphere, visit


def by_definition(vectors: torch.Tensor, positions: np.ndarray, mean: torch.Tensor) -> list[int]:
    total, front, back = torch.zeros_like(vectors[0]), [], []
    for p in positions:
        v = vectors[p] - mean
        if total @ v <= 0:
            total, front = total + v, [*front, int(p)]
        else:
            total, back = total - v, [*back, int(p)]
    return front + back[::-1]


@pytest.mark.parametrize("batch", [1, 4, 10])
def test_two_epochs_by_definition(batch: int) -> None:
    """The mean is zero in the first epoch and the first epoch's in the second."""
    vectors = sphere(10, 4) + 0.5
    order = bound(GraB(signal="exact"), 10)
    first = visit(order, vectors, 0, batch)
    assert order.epoch(1).tolist() == by_definition(vectors, first, torch.zeros(4, dtype=torch.float64))
    second = visit(order, vectors, 1, batch)
    assert order.epoch(2).tolist() == by_definition(vectors, second, vectors.mean(0))


def test_not_blind_to_a_constant_in_the_first_epoch() -> None:
    vectors = sphere(64, 8)
    plain, moved = bound(GraB(signal="exact"), 64), bound(GraB(signal="exact"), 64)
    visit(plain, vectors, 0, 64)
    visit(moved, vectors + 3.0, 0, 64)
    assert plain.epoch(1).tolist() != moved.epoch(1).tolist()


def test_the_floor_is_two_thirds_of_pairs() -> None:
    """2.0 to 2.4 at d = 16, whatever the number of examples; pairs 1.4 to 1.5 times that."""
    for n in (256, 2048):
        vectors = sphere(n, 16)
        mean = floor(GraB(signal="exact"), vectors, 15)
        assert 1.6 < mean < 2.6
        assert 1.1 < floor(PairBalance(signal="exact"), vectors, 15) / mean < 1.8


def test_a_running_mean_follows_a_mean_that_moves() -> None:
    """The constant is taken out within the first epoch already; the last epoch's mean knows nothing of it."""
    vectors = sphere(512, 8) + 5.0
    centred = vectors - vectors.mean(0)
    after = {}
    for decay in (None, 0.1):
        order = bound(GraB(signal="exact", decay=decay), 512)
        visit(order, vectors, 0, 8)
        after[decay] = float(centred[torch.from_numpy(order.epoch(1))].cumsum(0).norm(dim=1).max())
    assert after[0.1] < 0.8 * after[None]


def test_least_squares_table() -> None:
    """RR 3.5e-3, GraB 1.0e-4 at n = 128 in the specification."""
    random = np.mean([least_squares(Reshuffle(), 128, s) for s in range(3)])
    assert least_squares(GraB(signal="exact"), 128, 0) < random / 20


def in_a_tree(vectors: torch.Tensor, positions: list[int], levels: int, mean: torch.Tensor) -> list[int]:
    """By definition: both halves of an epoch's order are balanced again, each in the order in which it was visited."""
    total, front, back = torch.zeros_like(mean), [], []
    for p in positions:
        v = vectors[p] - mean
        sign = 1.0 if total @ v <= 0 else -1.0
        total = total + sign * v
        (front if sign > 0 else back).append(p)
    if levels == 1:
        return front + back[::-1]
    return in_a_tree(vectors, front, levels - 1, mean) + in_a_tree(vectors, back, levels - 1, mean)[::-1]


@pytest.mark.parametrize("levels", [2, 3])
def test_levels_by_definition(levels: int) -> None:
    vectors = sphere(40, 4) + 0.5
    for batch in (1, 7, 40):
        order = bound(GraB(signal="exact", levels=levels), 40)
        mean = torch.zeros(4, dtype=torch.float64)
        for epoch in range(3):
            positions = visit(order, vectors, epoch, batch)
            assert order.epoch(epoch + 1).tolist() == in_a_tree(vectors, positions.tolist(), levels, mean), batch
            mean = vectors.mean(0)


def test_levels_reach_the_floor_in_fewer_epochs() -> None:
    """After one epoch H is 26 / 2 and more by one level, and a half, a quarter, an eighth of that by more of them."""
    vectors = sphere(2048, 16)
    floors = [floor(GraB(signal="exact", levels=levels), vectors, 1) for levels in (1, 2, 3, 4)]
    assert floors[0] > 1.4 * floors[1] > 1.4 * 1.3 * floors[2]
    assert floors[3] < floors[0] / 3
    assert floor(GraB(signal="exact", levels=4), vectors, 4) < 4.5


def test_levels_refuse_what_they_cannot_do() -> None:
    for options in ({"sign": "halving"}, {"signal": "forward"}):
        with pytest.raises(UserError, match="use signal"):
            bound(GraB(levels=2, **options), 8)


@pytest.mark.parametrize("levels", [1, 3])
def test_resume_keeps_the_mean(levels: int) -> None:
    vectors = sphere(20, 4) + 1.0
    undisturbed, half = bound(GraB(signal="exact", levels=levels), 20), bound(GraB(signal="exact", levels=levels), 20)
    for epoch in range(3):
        visit(undisturbed, vectors, epoch, 3)
    visit(half, vectors, 0, 3)
    visit(half, vectors, 1, 3, upto=9)
    resumed = bound(GraB(signal="exact", levels=levels), 20)
    resumed.load_state_dict(half.state_dict())
    positions = resumed.epoch(1)
    for start in range(9, 20, 3):
        part = positions[start : start + 3]
        resumed.observe(part, Rows(vectors[torch.from_numpy(part)], [1] * len(part)))
    visit(resumed, vectors, 2, 3)
    assert resumed.epoch(3).tolist() == undisturbed.epoch(3).tolist()
