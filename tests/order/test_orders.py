"""In which order a worker visits its examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.comm.virtual import VirtualComm, World
from equipoise.core.context import Context, WorkerInfo
from equipoise.order import FlipFlop, Order, Reshuffle, Sequential, ShuffleOnce

CHOICES = [Sequential(), Reshuffle(), ShuffleOnce(), FlipFlop()]
SHUFFLED = CHOICES[1:]


def bound(choice: Order, examples: int, rank: int = 0, seed: int = 0, size: int = 4) -> Any:
    world = World(size)
    worker = WorkerInfo(rank, len(world.workers), seed, examples)
    return choice.bind(Context(VirtualComm(world, world.workers[rank]), worker=worker))


@pytest.mark.parametrize("choice", CHOICES, ids=repr)
@given(examples=st.integers(1, 50), epoch=st.integers(0, 20), rank=st.integers(0, 3), seed=st.integers(0, 2**31))
def test_every_epoch_is_a_permutation_that_depends_on_nothing_else(
    choice: Order, examples: int, epoch: int, rank: int, seed: int
) -> None:
    order = bound(choice, examples, rank, seed)
    visited = order.epoch(epoch)
    assert sorted(visited.tolist()) == list(range(examples))
    order.epoch(epoch + 3)
    assert np.array_equal(order.epoch(epoch), visited), (
        "epochs can be asked for in any order: a resume needs no history"
    )
    assert np.array_equal(bound(choice, examples, rank, seed).epoch(epoch), visited)


@pytest.mark.parametrize("choice", CHOICES, ids=repr)
def test_nothing_global_is_drawn_or_disturbed(choice: Order) -> None:
    before = np.random.get_state()[1].copy()
    order = bound(choice, 100)
    first = order.epoch(0)
    first[:] = 0
    assert not (order.epoch(0) == 0).all(), "what a caller does to its copy is no matter here"
    assert np.array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize("choice", SHUFFLED, ids=repr)
def test_workers_and_seeds_have_streams_of_their_own(choice: Order) -> None:
    orders = {tuple(bound(choice, 30, rank, seed).epoch(0)) for rank in range(4) for seed in range(4)}
    assert len(orders) == 16


def test_sequential_is_the_order_of_the_data() -> None:
    for epoch in range(3):
        assert bound(Sequential(), 6).epoch(epoch).tolist() == [0, 1, 2, 3, 4, 5]


def test_reshuffle_is_fresh_every_epoch() -> None:
    order = bound(Reshuffle(), 30)
    assert len({tuple(order.epoch(k)) for k in range(20)}) == 20


def test_shuffle_once_is_kept() -> None:
    order = bound(ShuffleOnce(), 30)
    assert len({tuple(order.epoch(k)) for k in range(20)}) == 1
    assert order.epoch(0).tolist() != list(range(30))


def test_flip_flop_goes_back_the_way_it_came() -> None:
    order = bound(FlipFlop(), 30)
    for k in range(0, 10, 2):
        assert order.epoch(k + 1).tolist() == order.epoch(k)[::-1].tolist()
    assert len({tuple(order.epoch(k)) for k in range(0, 20, 2)}) == 10, "and every pair is a fresh one"


@pytest.mark.parametrize("choice", SHUFFLED, ids=repr)
def test_permutations_are_uniform(choice: Order) -> None:
    """Where example 0 ends up, over 600 seeds and 6 places: chi-square with 5 degrees of freedom, below 20.5 with
    99.9 %.
    """
    places = np.bincount(
        [int(np.flatnonzero(bound(choice, 6, seed=s).epoch(0) == 0)[0]) for s in range(600)], minlength=6
    )
    assert ((places - 100) ** 2 / 100).sum() < 20.5


@pytest.mark.parametrize("choice", CHOICES, ids=repr)
def test_a_state_round_trip_changes_nothing(choice: Order) -> None:
    one, other = bound(choice, 20), bound(choice, 20)
    one.epoch(3)
    other.load_state_dict(one.state_dict())
    assert np.array_equal(one.epoch(4), other.epoch(4))
    assert not choice.watches
