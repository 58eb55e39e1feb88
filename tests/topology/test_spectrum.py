"""The numbers of the literature: lambda, the gap, rounds of gossip."""

from __future__ import annotations

from math import cos, log2, pi

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.topology import (
    BaseK,
    Complete,
    Edges,
    Exponential,
    Hypercube,
    Matching,
    OnePeer,
    Path,
    Random,
    Ring,
    Star,
    Torus,
)

# The second largest singular value by the size of the graph: closed forms, then numbers of the literature.
LAMBDA = [
    (Ring(), {n: (1 + 2 * cos(2 * pi / n)) / 3 for n in (4, 5, 9, 33)}),
    (Ring(), {2: 0.0, 3: 0.0, 8: 0.804738, 16: 0.949253, 32: 0.987190, 64: 0.996790}),
    (Path(), {n: (1 + 2 * cos(pi / n)) / 3 for n in (3, 4, 7, 16, 33)}),
    (Torus(), {s * s: (3 + 2 * cos(2 * pi / s)) / 5 for s in (5, 6)} | {16: 0.6, 64: 0.882843}),
    (Hypercube(), {2**d: (d - 1) / (d + 1) for d in (1, 2, 3, 4, 5)}),
    (Hypercube(lazy=True), {2**d: d / (d + 1) for d in (1, 2, 3, 4, 5)}),
    (Star(), {n: 1 - 1 / n for n in (3, 4, 8, 17)}),
    (Complete(), dict.fromkeys((2, 3, 8, 17), 0.0)),
    (Exponential(), {2: 0, 4: 1 / 3, 6: 1 / 2, 8: 1 / 2, 10: 3 / 5, 16: 3 / 5, 32: 2 / 3}),
]


@pytest.mark.parametrize(("graph", "values"), LAMBDA, ids=str)
def test_lambda(graph, values):
    for size, value in values.items():
        bound = graph.on(size)
        assert bound.rate() == pytest.approx(value, abs=1e-6), size
        assert bound.spectral_gap() == pytest.approx(1 - value, abs=1e-6), size
        centred = bound.matrix() - 1 / size
        assert bound.rate() == pytest.approx(np.linalg.norm(centred, 2), abs=1e-12), size


@pytest.mark.parametrize(
    ("graph", "size", "value"),
    [
        (Ring(), 8, -1 / 3),
        (Ring(), 2, 0.0),
        (Torus(), 16, -3 / 5),
        (Hypercube(), 16, -3 / 5),
        (Hypercube(lazy=True), 16, 1 / 5),
        (Star(), 9, 0.0),
        (Complete(), 9, 0.0),
    ],
    ids=str,
)
def test_smallest_eigenvalue(graph, size, value):
    assert graph.on(size).lambda_min() == pytest.approx(value, abs=1e-12)


def test_odd_rings_and_paths_stay_above_a_third():
    assert Ring().on(9).lambda_min() > -1 / 3 + 1e-3
    assert Path().on(9).lambda_min() > -1 / 3 + 1e-3


@settings(max_examples=25, deadline=None)
@given(size=st.integers(2, 20), slack=st.floats(0.01, 1.0), graph=st.sampled_from([Ring, Path, Star, Random]))
def test_lazy_and_slack_move_eigenvalues_as_they_say(size, slack, graph):
    plain = np.linalg.eigvalsh(graph().on(size).matrix())
    np.testing.assert_allclose(
        np.linalg.eigvalsh(graph(slack=slack).on(size).matrix()), 1 - slack * (1 - plain), atol=1e-12
    )
    np.testing.assert_allclose(np.linalg.eigvalsh(graph(lazy=True).on(size).matrix()), (1 + plain) / 2, atol=1e-12)
    both = graph(lazy=True, slack=slack).on(size)
    assert both.lambda_2() == pytest.approx(1 - slack / 2 * (1 - plain[-2]), abs=1e-12)


@pytest.mark.parametrize(
    ("graph", "size", "rounds"),
    [
        (Ring(), 8, 11),
        (Ring(), 16, 45),
        (Ring(), 32, 179),
        (Ring(), 64, 717),
        (Torus(), 64, 19),
        (Hypercube(), 16, 5),
        (Star(), 16, 36),
        (Complete(), 16, 1),
        (OnePeer(), 16, 4),
        (BaseK(), 6, 4),
    ],
    ids=str,
)
def test_rounds_of_plain_gossip_for_a_tenth(graph, size, rounds):
    assert graph.on(size).rounds_to_contract(0.1) == rounds


@pytest.mark.parametrize("graph", [Exponential(), OnePeer(), OnePeer(slack=0.2), BaseK(slack=0.3), Matching()], ids=str)
def test_rounds_of_changing_graphs_are_the_fewest(graph):
    bound = graph.on(11)
    rounds = bound.rounds_to_contract(0.1)
    assert bound.contraction(rounds) <= 0.1 + 1e-9 < bound.contraction(rounds - 1)


@pytest.mark.parametrize(
    ("graph", "size", "value"),
    [
        (Ring(), 9, 4),
        (Ring(), 8, 4),
        (Path(), 9, 8),
        (Star(), 9, 2),
        (Torus(), 16, 4),
        (Hypercube(), 16, 4),
        (Exponential(), 16, 4),
        (Complete(), 5, 1),
        (OnePeer(), 8, 3),
        (BaseK(), 8, 3),
    ],
    ids=str,
)
def test_diameter(graph, size, value):
    assert graph.on(size).diameter() == value


@pytest.mark.parametrize("size", [4, 8, 16])
def test_one_peer_is_exact_for_powers_of_two(size):
    bound = OnePeer().on(size)
    assert bound.cycle == log2(size)
    product = np.linalg.multi_dot([bound.matrix(round) for round in range(bound.cycle)])
    assert np.abs(product - 1 / size).max() == 0.0
    assert bound.contraction() == 0.0


def test_one_peer_is_not_exact_for_six():
    bound = OnePeer().on(6)
    product = np.linalg.multi_dot([bound.matrix(round) for round in range(3)])
    assert np.abs(product - 1 / 6).max() == pytest.approx(1 / 12)
    assert bound.contraction() > 0.2


def test_torus_takes_the_most_square_grid():
    assert Torus().grid(12) == (3, 4)
    assert Torus().grid(36) == (6, 6)
    assert Torus(rows=2).grid(12) == (2, 6)
    assert Torus(rows=2).on(12).degree() == 3  # up and down are the same peer
    assert Torus(rows=1).on(7).fingerprint() == Ring().on(7).fingerprint()


def test_direction_of_arrows():
    assert Exponential().on(8).targets(0, 6) == [(0, 0.25), (2, 0.25), (7, 0.25)]
    assert [OnePeer().on(8).targets(round, 6) for round in range(3)] == [[(7, 0.5)], [(0, 0.5)], [(2, 0.5)]]
    assert not Exponential().on(8).symmetric
    assert Exponential().on(2).symmetric
    assert Edges(links=["0-1", "1-0"], directed=True).on(2).symmetric


def test_the_rate_is_that_of_the_most_negative_eigenvalue_where_it_is_larger():
    """A cycle of four without weights of their own: eigenvalues 1, 0, 0, -1. Its disagreement only changes sign."""
    bound = Edges(links=[(0, 1, 0.5), (1, 2, 0.5), (2, 3, 0.5), (3, 0, 0.5)]).on(4)
    assert bound.lambda_2() == pytest.approx(0.0)
    assert bound.lambda_min() == pytest.approx(-1.0)
    assert bound.rate() == pytest.approx(1.0)
    slack = Edges(links=[(0, 1, 0.4), (1, 2, 0.4), (2, 3, 0.4), (3, 0, 0.4)]).on(4)
    assert slack.rate() == pytest.approx(0.6)
