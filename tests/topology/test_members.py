"""What every topology promises."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from equipoise import topology
from equipoise.config import registry
from equipoise.core.errors import UserError

from .members import MEMBERS, name, sizes


@pytest.mark.parametrize("graph", MEMBERS, ids=name)
def test_weights_are_doubly_stochastic(graph):
    for size in sizes(graph):
        bound = graph.on(size)
        bound.validate()
        for round in range(min(bound.cycle or 3, 12)):
            weights, where = bound.matrix(round), f"{size} workers, round {round}"
            assert weights.min() >= 0.0, where
            np.testing.assert_allclose(weights.sum(axis=0), 1.0, atol=1e-12, err_msg=where)
            np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-12, err_msg=where)
            if not graph.directed:
                np.testing.assert_allclose(weights, weights.T, atol=1e-15, err_msg=where)


@pytest.mark.parametrize("graph", MEMBERS, ids=name)
def test_targets_are_the_columns(graph):
    for size in sizes(graph):
        bound = graph.on(size)
        for round in (0, 1, bound.cycle + 1):
            columns = np.zeros((size, size))
            for rank in range(size):
                columns[rank, rank] = bound.keeps(round, rank)
                for peer, weight in bound.targets(round, rank):
                    columns[peer, rank] += weight
            np.testing.assert_array_equal(columns, bound.matrix(round), err_msg=f"{size} workers, round {round}")


@pytest.mark.parametrize("graph", MEMBERS, ids=name)
def test_same_answer_again_in_a_copy_and_after_pickling(graph):
    for size in sizes(graph):
        bound = graph.on(size)
        twins = [graph.on(size), copy.deepcopy(bound), pickle.loads(pickle.dumps(bound))]
        for round in (7, 0, 3):
            rows = [bound.neighbours(round, rank) for rank in range(size)]
            for twin in twins:
                assert [twin.neighbours(round, rank) for rank in range(size)] == rows, f"{size} workers"
        assert {twin.fingerprint() for twin in twins} == {bound.fingerprint()}, f"{size} workers"


@pytest.mark.parametrize("graph", MEMBERS, ids=name)
def test_sequence_repeats_after_its_cycle(graph):
    for size in sizes(graph):
        bound = graph.on(size)
        if bound.cycle:
            for round in range(bound.cycle):
                later = bound.matrix(round + 3 * bound.cycle)
                np.testing.assert_array_equal(bound.matrix(round), later, err_msg=f"{size} workers, round {round}")
        elif size > 2:
            first = bound.matrix(0)
            assert any(not np.array_equal(first, bound.matrix(round)) for round in range(1, 9)), f"{size} workers"


@pytest.mark.parametrize("graph", MEMBERS, ids=name)
def test_built_again_from_its_repr(graph):
    twin = eval(repr(graph), {type(graph).__name__: type(graph)})
    assert twin == graph
    size = 7 if isinstance(graph, topology.Edges) else 4
    assert twin.on(size).fingerprint() == graph.on(size).fingerprint()


def test_on_binds_a_copy():
    graph = topology.Ring()
    three, five = graph.on(3), graph.on(5)
    assert (graph.size, graph.identity, graph.is_bound) == (0, "", False)
    assert (three.size, five.size, five.is_bound) == (3, 5, True)
    assert three.identity == topology.Ring().on(3).identity != five.identity
    assert three == graph  # equality is that of the options
    with pytest.raises(AssertionError, match=r"call .on\(workers\) first"):
        graph.neighbours(0, 0)


@pytest.mark.parametrize("known", registry.names("topology"))
def test_one_worker_is_alone(known):
    bound = registry.get("topology", known)().on(1)
    assert bound.neighbours(0, 0) == bound.targets(0, 0) == []
    assert bound.keeps(0, 0) == 1.0
    assert (bound.cycle, bound.diameter(), bound.rounds_to_contract(), bound.rate()) == (1, 0, 0, 0.0)


@pytest.mark.parametrize("graph", [graph for graph in MEMBERS if not isinstance(graph, topology.Edges)], ids=name)
def test_large_graphs_answer_at_once(graph):
    bound = graph.on(1024)
    for rank in range(0, 1024, 16):
        assert all(0 <= peer < 1024 and peer != rank for peer, _ in bound.neighbours(5, rank))
        bound.targets(5, rank)


def test_every_file_is_registered():
    assert set(registry.names("topology")) == {
        "complete",
        "ring",
        "path",
        "star",
        "torus",
        "hypercube",
        "exponential",
        "one-peer",
        "base-k",
        "matching",
        "random",
        "edges",
    }
    for known in registry.names("topology"):
        assert registry.name_of(registry.get("topology", known)()) == known


def test_fingerprints_differ_when_graphs_do():
    graphs = [
        topology.Ring(),
        topology.Ring(lazy=True),
        topology.Ring(slack=0.5000001),
        topology.Path(),
        topology.Star(),
        topology.Star(hub=1),
        topology.Torus(),
        topology.Torus(rows=2),
        topology.Exponential(),
        topology.OnePeer(),
        topology.BaseK(),
        topology.BaseK(peers=3),
        topology.Matching(),
        topology.Matching(seed=1),
        topology.Random(seed=1, probability=0.4),
        topology.Random(seed=2, probability=0.4),
    ]
    prints = [graph.on(size).fingerprint() for graph in graphs for size in (12, 16)]
    assert len(set(prints)) == len(prints)
    assert topology.Ring(slack=0.5).on(8).fingerprint() == topology.Ring(lazy=True).on(8).fingerprint()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: topology.Ring(slack=0.0), "above 0"),
        (lambda: topology.Ring(slack=1.5), "at most 1"),
        (lambda: topology.Ring(lazy=3), "takes true or false"),
        (lambda: topology.Star(hub=-1), "at least 0"),
        (lambda: topology.Star(hub=4).on(4), "0 to 3"),
        (lambda: topology.Ring().on(0), "at least 1"),
        (lambda: topology.Torus().on(7), "use ring, or 8 workers"),
        (lambda: topology.Torus(rows=5).on(12), "must divide 12"),
        (lambda: topology.Hypercube().on(12), "use 8 or 16 workers, or base-k"),
        (lambda: topology.BaseK(peers=0), "at least 1"),
        (lambda: topology.Matching(seed=-1), "at least 0"),
        (lambda: topology.Random(probability=1.1), "at most 1"),
        (lambda: topology.Random(probability=0.001).on(30), "use at least 0.11"),
        (lambda: topology.Exponential().on(5).lambda_min(), "undirected"),
    ],
)
def test_nonsense_is_refused_with_the_fix(make, words):
    with pytest.raises(UserError, match=words):
        make()
