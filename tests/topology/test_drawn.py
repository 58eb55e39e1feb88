"""Random graphs: the same on all workers; random pairs differ in every round."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.topology import Matching, Random
from equipoise.topology.graphs import components


@pytest.mark.parametrize("size", [2, 3, 8, 9])
def test_matching_pairs_all_but_at_most_one(size):
    bound = Matching(seed=4).on(size)
    for round in range(20):
        peers = [bound.neighbours(round, rank) for rank in range(size)]
        assert sum(not mine for mine in peers) == size % 2
        for rank, mine in enumerate(peers):
            assert all(peers[peer] == [(rank, 0.5)] for peer, _ in mine)


def test_the_squared_disagreement_that_remains_after_a_matching():
    bound, size = Matching().on(8), 8
    mean = np.mean([bound.matrix(round) for round in range(3000)], axis=0)  # W is a projection: E[W'W] = E[W]
    values = np.linalg.eigvalsh(mean)
    np.testing.assert_allclose(values[:-1], 0.5 - 1 / (2 * (size - 1)), atol=0.05)


def test_matching_does_not_depend_on_earlier_calls():
    late = Matching(seed=9).on(10).neighbours(1000, 3)
    for round in range(50):
        Matching(seed=9).on(10).neighbours(round, 3)
    assert Matching(seed=9).on(10).neighbours(1000, 3) == late


@pytest.mark.parametrize("seed", range(5))
def test_random_is_connected_and_about_as_dense_as_asked(seed):
    bound = Random(probability=0.3, seed=seed).on(40)
    peers = [[peer for peer, _ in bound.neighbours(0, rank)] for rank in range(40)]
    assert len(components(peers)) == 1
    assert sum(map(len, peers)) / (40 * 39) == pytest.approx(0.3, abs=0.06)


def test_components():
    assert components([[1], [0], [], [4], [3]]) == [[0, 1], [2], [3, 4]]
