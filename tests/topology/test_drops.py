"""Links that are down in some rounds: who knows it, and what becomes of W."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.core.errors import UserError
from equipoise.topology import BaseK, Complete, Exponential, Matching, OnePeer, Ring, Star, Torus

GRAPHS = [Ring(drop=0.3), Star(drop=0.3, lazy=True), Torus(drop=0.3), BaseK(drop=0.3), Matching(drop=0.3)]


@pytest.mark.parametrize("topology", GRAPHS, ids=lambda t: type(t).__name__)
def test_the_weight_of_a_link_that_is_down_stays_with_both_ends(topology: object) -> None:
    graph = topology.on(9)  # type: ignore[attr-defined]
    whole = graph.without_drops()
    graph.validate()
    lost = 0
    for round in range(20):
        weights, before = graph.matrix(round), whole.matrix(round)
        assert np.array_equal(weights, weights.T)
        np.testing.assert_allclose(weights.sum(1), 1.0, rtol=0, atol=1e-15)
        gone = (weights != before) & ~np.eye(9, dtype=bool)
        assert not weights[gone].any()
        np.testing.assert_allclose(np.diag(weights), np.diag(before) + (before * gone).sum(1), rtol=0, atol=1e-15)
        assert graph.intact(round) == (not gone.any())
        lost += int(gone.sum())
    assert lost > 0


def test_links_are_down_as_often_as_asked_and_not_the_same_ones_in_each_round() -> None:
    a, b = np.triu_indices(20, 1)
    up = np.array([Complete(drop=0.1).on(20).matrix(round)[a, b] > 0 for round in range(40)])
    assert abs(1.0 - up.mean() - 0.1) < 0.01  # 7,600 draws, a deviation of 0.0034
    assert 0.7 < up.mean(0).min() < up.mean(0).max()
    other = np.array([Complete(drop=0.1, drop_seed=1).on(20).matrix(round)[a, b] > 0 for round in range(40)])
    assert not np.array_equal(other, up)


def test_the_pairs_of_a_round_and_the_links_that_are_down_are_drawn_apart() -> None:
    """With one stream for both, the pairs that a small number makes would be those that are down."""
    graph, whole = Matching(drop=0.5).on(8), Matching().on(8)
    for rank in range(8):
        paired = [whole.neighbours(round, rank)[0][0] for round in range(400)]
        kept = [bool(graph.neighbours(round, rank)) for round in range(400)]
        for peer in set(paired):
            assert 0.25 < np.mean([k for k, p in zip(kept, paired, strict=True) if p == peer]) < 0.75


def test_what_it_is_for_the_methods() -> None:
    ring = Ring(drop=0.2).on(6)
    assert ring.cycle == 0
    assert Ring(drop=0.2).on(1).cycle == Ring().on(6).cycle == ring.without_drops().cycle == 1
    assert ring.without_drops().size == 6
    assert ring.symmetric
    assert ring.fingerprint() != Ring(drop=0.2, drop_seed=1).on(6).fingerprint() != Ring().on(6).fingerprint()
    assert 0.0 < 1.0 - ring.contraction(64) ** (1 / 64) < Ring().on(6).spectral_gap()
    states = [ring.intact(round) for round in range(30)]
    assert {True, False} == set(states)
    assert all(ring.intact(first, 3) == all(states[first : first + 3]) for first in range(27))


@pytest.mark.parametrize("topology", [OnePeer(drop=1e-6), Exponential(drop=1e-6)], ids=lambda t: type(t).__name__)
def test_a_directed_graph_is_refused_also_where_the_first_links_to_fail_are_far_away(topology: object) -> None:
    graph = topology.on(8)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="would move the mean"):
        graph.validate()
    graph.validate(push_sum=True)
    for round in range(3):  # columns sum to 1, which push-sum needs
        np.testing.assert_allclose(type(graph)(drop=0.4).on(8).matrix(round).sum(0), 1.0, rtol=0, atol=1e-15)
