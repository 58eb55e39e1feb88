from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.topology import BaseK

# Lengths of the sequences that the authors' construction gives, by the number of workers.
LENGTHS = {
    1: {3: 3, 4: 2, 5: 5, 6: 4, 7: 5, 8: 3, 9: 7, 12: 5, 16: 4, 24: 6, 25: 9, 32: 5, 33: 11},
    2: {3: 1, 4: 2, 5: 3, 6: 2, 7: 4, 9: 2, 12: 3, 25: 6, 33: 6},
    3: {4: 1, 5: 3, 8: 2, 16: 2, 25: 5, 32: 3, 33: 5},
}


@pytest.mark.parametrize(("peers", "lengths"), LENGTHS.items(), ids=[f"{peers} peers" for peers in LENGTHS])
def test_length_and_exact_mean(peers, lengths):
    assert {size: BaseK(peers=peers).on(size).cycle for size in lengths} == lengths
    for size in lengths:
        assert BaseK(peers=peers).on(size).contraction() < 1e-12, size


@settings(max_examples=60, deadline=None)
@given(size=st.integers(2, 90), peers=st.integers(1, 8))
def test_any_number_of_workers(size, peers):
    bound = BaseK(peers=peers).on(size)
    bound.validate()
    assert bound.symmetric
    assert max(bound.degree(round) for round in range(bound.cycle)) <= peers
    assert bound.cycle <= 2 * math.log(size, peers + 1) + 2
    assert bound.contraction() < 1e-12


def test_the_mean_is_exact_from_any_round_on_for_cubes():
    # A cube's rounds commute, so a period may start anywhere: useful after a resume.
    bound = BaseK().on(8)
    shifted = bound.matrix(3) @ bound.matrix(2) @ bound.matrix(1)
    assert abs(shifted - 1 / 8).max() == 0.0


def test_fewest_factors():
    assert BaseK(peers=7).on(216).cycle == 3  # 6 x 6 x 6; the greedy 8 x 3 x 3 x 3 takes four
