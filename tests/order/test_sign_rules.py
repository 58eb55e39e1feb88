"""Sign rules as functions, and what they make of the running sum."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.order import PairBalance
from equipoise.order.sign_rules import SIGN_RULES, greedy, halving, walk

from .drive import floor, largest_prefix, sphere


def never() -> float:
    raise AssertionError("greedy draws nothing")


def test_greedy_counts_a_tie_as_plus() -> None:
    assert [greedy(x, 1.0, {}, never) for x in (-1.0, 0.0, 1e-300)] == [1, 1, -1]


def test_walk_is_as_likely_as_it_says() -> None:
    """+ with probability 1/2 - x / (2 c), c = 30 for unit vectors."""
    generator = np.random.default_rng(0)
    for product in (-15.0, 0.0, 6.0, 40.0):
        share = np.mean([walk(product, 1.0, {}, generator.random) == 1 for _ in range(4000)])
        assert share == pytest.approx(min(1.0, max(0.0, 0.5 - product / 60)), abs=0.03)


def test_halving_follows_its_recursion() -> None:
    """First ratio 0: width b^2, spread 2 b^2; afterwards width b^2 sqrt(spread L / b^2)."""
    memory = {"epochs": 3.0, "terms": 50.0}
    assert halving(0.5, 4.0, memory, lambda: 1.0) == 1  # 0.5 <= 4 * (+1)
    assert memory["spread"] == 8.0
    penalty = math.log(8 * (1 + math.log(3)) * (1 + math.log(50)) * 2 * 3)
    root = math.sqrt(8.0 * penalty / 4.0)
    assert halving(4 * root * 0.99, 4.0, dict(memory), lambda: 1.0) == 1
    assert halving(4 * root * 1.01, 4.0, memory, lambda: 1.0) == -1
    assert memory["spread"] == pytest.approx(8.0 + 8.0 * max(0.0, penalty + 0.5 - root) / penalty)
    assert halving(1.0, 0.0, memory, never) == 1  # a vector of zeros: no sign is better


def test_floors_of_the_rules() -> None:
    """d = 16, N = 1024: greedy about 3; halving well below random, the walk with its constant not much below it."""
    vectors = sphere(1024, 16)
    floors = {
        sign: floor(PairBalance(signal="exact", sign=sign), vectors, 15) for sign in ("greedy", "halving", "walk")
    }
    random = largest_prefix(vectors)
    assert floors["greedy"] < 3.6
    assert floors["greedy"] < floors["halving"] < 0.7 * random
    assert floors["halving"] < floors["walk"] < random


@pytest.mark.parametrize("rule", ["halving", "walk"])
def test_a_norm_that_overflows_is_forgotten(rule: str) -> None:
    """The square of a finite vector may be infinite; it must not decide all later signs of the epoch."""
    chosen, memory = SIGN_RULES[rule], {"epochs": 1.0, "terms": 10.0}
    chosen(0.5, 2.0, memory, lambda: 0.7)
    before = dict(memory)
    for square in (float("inf"), float("nan")):
        assert chosen(-1.0, square, memory, lambda: 0.9) == 1
        assert chosen(1.0, square, memory, lambda: 0.1) == -1
    assert memory == before
