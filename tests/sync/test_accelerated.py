"""Accelerated gossip on matrices: the recursion, its polynomial, the bounds, and the guard."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.context import Context
from equipoise.core.errors import UserError
from equipoise.sync.accelerated import (
    ENOUGH,
    FITTED,
    GossipPlan,
    bound,
    chebyshev_bound,
    default_rounds,
    eta,
    etas,
    gossip,
    polynomial,
    rho,
)
from equipoise.sync.mixing import Mixing
from equipoise.topology import Complete, Edges, Exponential, Hypercube, OnePeer, Random, Ring, Star, Topology, Torus

from .checks import matrix_power


def spectrum(topology: Topology) -> np.ndarray:
    """The eigenvalues other than the 1 of the mean."""
    return np.linalg.eigvalsh(topology.matrix())[:-1]


def second_kind(order: int, t: np.ndarray) -> np.ndarray:
    """Chebyshev's U_order on [-1, 1] (and U_{-1} = 0)."""
    before, now = np.zeros_like(t), np.ones_like(t)
    for _ in range(order):
        before, now = now, 2 * t * now - before
    return now if order >= 0 else before


ALMOST_BIPARTITE = Edges(links=[(0, 1, 0.48), (1, 2, 0.48), (2, 3, 0.48), (0, 3, 0.48)]).on(4)
GRAPHS = [(Ring(), 8), (Ring(), 5), (Ring(), 32), (Star(), 16), (Torus(), 16), (Hypercube(), 16), (Random(), 12)]


@pytest.mark.parametrize(("topology", "size"), GRAPHS, ids=repr)
def test_the_polynomial_is_the_recursion_and_its_closed_form(topology: Topology, size: int) -> None:
    graph = topology.on(size)
    rate, mu = graph.rate(), spectrum(graph)
    r = rho(rate)
    assert eta(rate) == pytest.approx(r * r, rel=1e-12)
    for rounds in (1, 2, 3, 7, 16):
        coefficients = etas("accelerated", rate, rounds)
        values = polynomial(mu, coefficients)
        closed = r**rounds * (second_kind(rounds, mu / rate) - r * second_kind(rounds - 1, mu / rate))
        np.testing.assert_allclose(values, closed, rtol=0, atol=1e-12)
        power = matrix_power(graph.matrix(), coefficients)
        assert np.abs(power.mean(0) - 1 / size).max() < 1e-14  # the mean stays
        assert np.linalg.norm(power - 1 / size, 2) == pytest.approx(np.abs(values).max(), abs=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_bounds_hold_on_random_graphs(seed: int) -> None:
    size = 6 + 5 * seed
    graph, lazy = Random(seed=seed).on(size), Random(seed=seed, lazy=True).on(size)
    for rounds in range(1, 25):
        left = np.abs(polynomial(spectrum(graph), etas("accelerated", graph.rate(), rounds))).max()
        assert left <= bound(graph.rate(), rounds) + 1e-12
        left = np.abs(polynomial(spectrum(lazy), etas("accelerated", lazy.rate(), rounds))).max()
        assert left <= bound(lazy.rate(), rounds, nonnegative=True) + 1e-12


def test_rings_meet_the_papers_form_of_the_bound() -> None:
    """c (1 - sqrt(1 - lambda))^R with c = 4, which is not universal but holds on rings from 8 workers on."""
    for size in (8, 9, 16, 33, 64):
        graph = Ring().on(size)
        for rounds in range(1, 60):
            left = np.abs(polynomial(spectrum(graph), etas("accelerated", graph.rate(), rounds))).max()
            assert left <= 4 * (1 - math.sqrt(1 - graph.rate())) ** rounds


@pytest.mark.parametrize(("topology", "size"), GRAPHS, ids=repr)
def test_chebyshev_contracts_as_its_formula_says(topology: Topology, size: int) -> None:
    graph = topology.on(size)
    for rounds in (1, 2, 3, 5, 12, 30):
        # lambda is an eigenvalue up to its sign, so the bound is attained.
        left = np.abs(polynomial(spectrum(graph), etas("chebyshev", graph.rate(), rounds))).max()
        assert left == pytest.approx(chebyshev_bound(graph.rate(), rounds), abs=1e-12)
        assert left < 1


def rounds_to_contract(topology: Topology, kind: str) -> int:
    for rounds in range(1, 1000):
        if np.abs(polynomial(spectrum(topology), etas(kind, topology.rate(), rounds))).max() <= 0.1:
            return rounds
    raise AssertionError


def test_rounds_to_shrink_disagreement_tenfold() -> None:
    """Accelerated, Chebyshev's and plain: the numbers known from elsewhere."""
    table = [
        (Ring(), 8, (6, 5, 11)),
        (Ring(), 16, (12, 10, 45)),
        (Ring(), 32, (24, 19, 179)),
        (Torus(), 64, (8, 6, 19)),
        (Hypercube(), 16, (4, 3, 5)),
        (Star(), 16, (11, 9, 36)),
    ]
    for topology, size, expected in table:
        graph = topology.on(size)
        assert tuple(rounds_to_contract(graph, kind) for kind in ("accelerated", "chebyshev", "plain")) == expected


def test_one_round_may_amplify_and_is_refused() -> None:
    for size, value in ((16, 1.03), (32, 1.30), (64, 1.47)):
        graph = Ring().on(size)
        factor = np.abs(polynomial(spectrum(graph), etas("accelerated", graph.rate(), 1))).max()
        assert factor == pytest.approx(value, abs=0.005)
        with pytest.raises(UserError, match=f"by {value:.2f}.*lazy=True.*gossip='plain'"):
            GossipPlan.make(graph, "accelerated", 1, "DeTAG")
        lazy = Ring(lazy=True).on(size)
        r = rho(lazy.rate())
        factor = np.abs(polynomial(spectrum(lazy), etas("accelerated", lazy.rate(), 1))).max()
        assert factor == pytest.approx((2 - r) * r, abs=1e-12)
        assert factor < 1
    with pytest.raises(UserError, match="omit rounds"):  # does not amplify, but no method wants it either
        GossipPlan.make(Ring().on(8), "accelerated", 1, "DeTAG")
    assert GossipPlan.make(Ring().on(32), "plain", 1, "DeTAG").etas == (0.0,)
    assert GossipPlan.make(Ring().on(32), "chebyshev", 1, "DeTAG").etas == (0.0,)
    assert GossipPlan.make(Ring().on(32), "accelerated", 6, "DeTAG").contraction < 1


def test_the_number_of_rounds_comes_from_the_graph() -> None:
    rings = {8: 3, 16: 7, 32: 16, 64: 37}
    for size, rounds in rings.items():
        assert default_rounds(size, Ring().on(size).rate()) == rounds
        assert GossipPlan.make(Ring().on(size), "accelerated", None, "DeTAG").rounds == rounds
    assert GossipPlan.make(Star().on(16), "accelerated", None, "DeTAG").rounds == 6
    for heterogeneity in (4.0, 16.0):
        assert default_rounds(16, Ring().on(16).rate(), heterogeneity) == 7
    assert GossipPlan.make(Ring().on(8), "accelerated", None, "DeTAG", 8.0**3).rounds == 8  # 3 times 2.35
    assert GossipPlan.make(Complete().on(16), "accelerated", None, "DeTAG").rounds == 1
    # One round of a ring of four is plain gossip; a graph on which the formula's R amplifies gets a larger one.
    assert GossipPlan.make(Ring().on(4), "accelerated", None, "DeTAG").etas == (0.0,)
    nervous = GossipPlan.make(Edges(links=[(0, 1, 0.95)]).on(2), "accelerated", None, "DeTAG")
    assert nervous.rounds > default_rounds(2, 0.9)
    assert nervous.contraction < 1


def test_graphs_it_cannot_use_are_refused() -> None:
    for topology, size, words in (
        (OnePeer(), 8, "same graph in every round"),
        (Exponential(), 8, "symmetric weights"),
        (Edges(links=[(0, 1, 1.0)]), 2, "lambda = 1.*lazy=True"),
    ):
        with pytest.raises(UserError, match=words):
            GossipPlan.make(topology.on(size), "accelerated", None, "DeTAG")


def test_fitted_rounds_contract_as_chebyshev_on_the_spectrum() -> None:
    """Against the polynomial of I + s (W - I); the rounds of slack rings are those of the ring itself."""
    for graph in (Ring().on(8), Ring(slack=0.05).on(8), Star().on(6), Complete().on(5), Ring().on(2), ALMOST_BIPARTITE):
        plan = GossipPlan.make(graph, FITTED, None, "DeTAG")
        left = np.abs(polynomial(1.0 + plan.stretch * (spectrum(graph) - 1.0), list(plan.etas))).max()
        assert left == pytest.approx(plan.contraction, abs=1e-12)
        assert left <= ENOUGH
        if plan.rounds > 1:
            assert GossipPlan.make(graph, FITTED, plan.rounds - 1, "DeTAG").contraction > ENOUGH
    counts = {n: GossipPlan.make(Ring().on(n), FITTED, None, "DeTAG").rounds for n in (4, 8, 16, 32)}
    assert counts == {4: 1, 8: 2, 16: 4, 32: 8}
    assert GossipPlan.make(Ring(slack=0.01).on(16), FITTED, None, "DeTAG").rounds == counts[16]


def test_the_smallest_eigenvalue_counts() -> None:
    """Its absolute value is the rate where it exceeds the second largest one, and the weights follow from it."""
    assert ALMOST_BIPARTITE.lambda_2() == pytest.approx(0.04)
    assert ALMOST_BIPARTITE.rate() == pytest.approx(0.92)
    plan = GossipPlan.make(ALMOST_BIPARTITE, "chebyshev", 3, "DeTAG")
    assert plan.contraction == pytest.approx(chebyshev_bound(0.92, 3))


@pytest.mark.parametrize("kind", ["accelerated", "chebyshev", "plain"])
@pytest.mark.parametrize("rounds", [2, 5])
def test_workers_compute_the_matrix_polynomial(kind: str, rounds: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((5, 3))
    graph = Ring().on(5)
    plan = GossipPlan.make(graph, kind, rounds, "MGDSGD")

    def loop(comm: Comm) -> np.ndarray:
        z = torch.from_numpy(vectors[comm.rank].copy())
        gossip(Mixing(Context(comm), Ring()), plan, z, torch.empty_like(z))
        return z.numpy()

    mixed = np.stack(eq.spawn(loop, 5, virtual=True))
    np.testing.assert_allclose(mixed, matrix_power(graph.matrix(), list(plan.etas)) @ vectors, atol=1e-14)
