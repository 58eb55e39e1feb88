"""One round of gossip is W x, on every graph, and counts when it ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.context import Context
from equipoise.core.errors import UserError
from equipoise.core.vector import Flat
from equipoise.sync.mixing import Mixing, agree, mixing_gap
from equipoise.topology import Complete, Edges, Exponential, Hypercube, Matching, OnePeer, Path, Ring, Star, Topology

GRAPHS = [Ring(), Path(), Star(), Complete(), Exponential(), OnePeer(), Matching(), Path(lazy=True), Ring(slack=0.1)]


def gossiped(topology: Topology, vectors: np.ndarray, rounds: int, dtype: torch.dtype, **choices: Any) -> np.ndarray:
    def loop(comm: Comm) -> np.ndarray:
        mixing = Mixing(Context(comm), topology, **choices)
        x = torch.from_numpy(vectors[comm.rank]).to(dtype)
        for _ in range(rounds):
            mixing.mix(x)
        assert mixing.context.clock.rounds == rounds
        return x.double().numpy()

    return np.stack(eq.spawn(loop, len(vectors), virtual=True))


@pytest.mark.parametrize("topology", GRAPHS, ids=repr)
def test_rounds_multiply_by_the_matrices(topology: Topology) -> None:
    for size in (2, 5, 8):
        vectors = np.random.default_rng(1).standard_normal((size, 3))
        expected = vectors
        for round in range(4):
            expected = topology.on(size).matrix(round) @ expected
        mixed = gossiped(topology, vectors, 4, torch.float64)
        np.testing.assert_allclose(mixed, expected, atol=1e-14, err_msg=f"{size} workers")


@pytest.mark.parametrize("tracks", [True, False], ids=["replicas", "initial-model"])
def test_bfloat16_on_the_wire_keeps_the_mean(tracks: bool) -> None:
    """Rounded distances do not move the mean of models in float64. Replicas make up for the rounding; without them
    the models stay apart by it.
    """
    vectors = np.random.default_rng(2).standard_normal((5, 64))

    def loop(comm: Comm) -> np.ndarray:
        context = Context(comm, flat=Flat(torch.nn.Linear(64, 1, bias=False)))
        wire = eq.wire.BFloat16().bind(context)
        wire.start(torch.zeros(64))
        mixing = Mixing(context, Ring(), wire.replicas("gossip", 1, 1.0, tracks=tracks))
        x = torch.from_numpy(vectors[comm.rank].copy())
        for _ in range(40):
            mixing.mix(x)
        return x.numpy()

    mixed = np.stack(eq.spawn(loop, 5, virtual=True))
    away = np.abs(mixed - vectors.mean(0)).max()
    assert np.abs(mixed.mean(0) - vectors.mean(0)).max() < 1e-13
    if tracks:
        assert away < 1e-5
    else:
        assert 1e-4 < away < 2**-7


def test_end_scales_and_keeps() -> None:
    """out <- scale W own + keep out, whether or not `out` is `own`."""
    vectors = np.random.default_rng(3).standard_normal((5, 4))
    weights = Ring().on(5).matrix()

    def loop(comm: Comm) -> tuple[np.ndarray, np.ndarray]:
        mixing = Mixing(Context(comm), Ring())
        own = torch.from_numpy(vectors[comm.rank].copy())
        out = torch.ones(4, dtype=torch.float64)
        mixing.begin(own, copy=True)
        mixing.end(own, out, scale=1.5, keep=-0.5)
        mixing.begin(own)
        mixing.end(own, own, scale=1.5, keep=-0.5)
        return out.numpy(), own.numpy()

    out, own = map(np.stack, zip(*eq.spawn(loop, 5, virtual=True), strict=True))
    np.testing.assert_allclose(out, 1.5 * weights @ vectors - 0.5, atol=1e-14)
    np.testing.assert_allclose(own, 1.5 * weights @ vectors - 0.5 * vectors, atol=1e-14)


def test_a_dropped_round_never_was() -> None:
    def loop(comm: Comm) -> None:
        mixing = Mixing(Context(comm), Ring())
        x = torch.full((3,), float(comm.rank))
        mixing.begin(x)
        mixing.drop()
        assert not mixing.in_flight
        assert (comm.ledger.messages, comm.ledger.bytes, mixing.context.clock.rounds) == (0, 0, 0)
        mixing.mix(x)
        assert (comm.ledger.messages, comm.ledger.bytes, mixing.context.clock.rounds) == (2, 24, 1)

    eq.spawn(loop, 4, virtual=True)


def test_links_dropped_at_both_ends_keep_the_mean() -> None:
    """The weight of a lost link goes back to the two diagonals; lost at one end only, the mean moves."""
    rng = np.random.default_rng(4)
    vectors = rng.standard_normal((8, 3))
    both = one = vectors
    for _ in range(50):
        weights = Ring().on(8).matrix()
        lost = int(rng.integers(8))
        a, b = lost, (lost + 1) % 8
        for end, other in ((a, b), (b, a)):
            weights[end, end] += weights[end, other]
            weights[end, other] = 0.0
            if end == a:
                one = weights @ one
        both = weights @ both
    assert np.abs(both.mean(0) - vectors.mean(0)).max() < 1e-14
    assert np.abs(one.mean(0) - vectors.mean(0)).max() > 1e-3


def test_workers_must_have_the_same_valid_graph() -> None:
    def loop(comm: Comm) -> None:
        agree(Context(comm), Ring() if comm.rank < 3 else Path(), "D-PSGD")

    with pytest.raises(UserError, match="workers 0 and 3 disagree on the graph"):
        eq.spawn(loop, 4, virtual=True)

    def directed(comm: Comm) -> None:
        agree(Context(comm), Edges(links=[(0, 1), (1, 2), (2, 0), (0, 2)], directed=True), "D-PSGD")

    with pytest.raises(UserError, match="the mean"):
        eq.spawn(directed, 3, virtual=True)


def test_gap_of_graphs_that_stay_and_that_change() -> None:
    assert mixing_gap(Ring().on(8)) == pytest.approx(1 - 0.804738, abs=1e-6)
    assert mixing_gap(Hypercube().on(8)) == pytest.approx(0.5)
    assert mixing_gap(OnePeer().on(8)) == pytest.approx(1.0, abs=1e-4)  # the exact mean after three rounds
