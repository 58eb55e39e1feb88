"""One round of gossip is W x, on every graph, and counts when it ends; what the tests of the gossip methods share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.context import Context
from equipoise.core.errors import UserError
from equipoise.loop.attach import attach
from equipoise.sync.mixing import Mixing, agree, mixing_gap
from equipoise.topology import Complete, Edges, Exponential, Hypercube, Matching, OnePeer, Path, Ring, Star, Topology

from .quadratic import Problem, error, solve

GRAPHS = [Ring(), Path(), Star(), Complete(), Exponential(), OnePeer(), Matching(), Path(lazy=True), Ring(slack=0.1)]


# -- shared with the tests of the methods -----------------------------------------------------------------------------
def stops_exactly(sync: Any, workers: int, steps: int, lr: float, period: int = 1, **options: Any) -> None:
    """Heterogeneous quadratics, constant step: all workers end at the optimum of the mean. `lr` is in units of 1/L."""
    problem = mild(workers)
    points = solve(problem, sync, steps=steps, lr=lr / problem.smoothness, period=period, **options)
    assert error(problem, points) < 1e-8


def mild(workers: int) -> Problem:
    """A well-conditioned problem, so that few steps tell exact from biased."""
    wild = Problem.make(workers)
    return Problem(wild.matrices / wild.smoothness + np.eye(5), wild.centres)


def follows(
    sync: Any, reference: Callable[[Problem, float, int], list[np.ndarray]], steps: int, **options: Any
) -> None:
    """The method and a recursion on matrices give the same points, step by step."""
    problem = Problem.make(8)
    lr = 0.2 / problem.smoothness
    expected = reference(problem, lr, steps)
    seen = np.zeros((steps, *problem.centres.shape))

    def look(step: int, together: Any, x: np.ndarray) -> None:
        seen[step, together.comm.rank] = x

    solve(problem, sync, steps=steps, lr=lr, look=look, **options)
    np.testing.assert_allclose(seen, expected, rtol=0, atol=1e-12)


def same_on_processes(sync: Any, period: int = 1, steps: int = 7) -> None:
    problem = Problem.make(4)

    def look(step: int, together: Any, x: np.ndarray) -> None:
        if step == steps - 1 and hasattr(together.sync, "finish"):
            together.sync.finish()

    runs = [solve(problem, sync, steps=steps, lr=0.05, period=period, virtual=v, look=look) for v in (True, False)]
    assert np.array_equal(*runs)
    assert np.abs(runs[0]).max() > 0


def costs_what_it_says(sync: Any, period: int = 1, sizes: tuple[int, ...] = (2, 3, 4, 5), steps: int = 7) -> None:
    for size in sizes:
        sums: dict[int, tuple[int, int, int]] = {}

        def look(step: int, together: Any, x: np.ndarray, sums: Any = sums, size: int = size) -> None:
            comm, clock = together.comm, together.clock
            messages, bytes, rounds = sums.get(comm.rank, (0, 0, 0))
            declared = together.sync.cost(len(x), 8, comm.rank, size, clock.due, rounds)
            assert (comm.ledger.messages - messages, comm.ledger.bytes - bytes) == declared
            sums[comm.rank] = comm.ledger.messages, comm.ledger.bytes, clock.rounds

        solve(Problem.make(size), sync, steps=steps, lr=0.01, period=period, look=look)
        assert size == 1 or sums[0][0] > 0


def goes_on_from_any_step(sync: Any, period: int = 1, steps: int = 9, stops: tuple[int, ...] = (1, 4, 6)) -> None:
    """Stopped in the middle of a phase and taken up by new objects: the same bits and the same counts."""
    problem = Problem.make(4)

    def loop(comm: Comm) -> None:
        a, c = torch.from_numpy(problem.matrices[comm.rank]), torch.from_numpy(problem.centres[comm.rank])

        def run(steps: int, saved: Any = None) -> Any:
            model = nn.Linear(5, 1, bias=False, dtype=torch.float64)
            nn.init.zeros_(model.weight)
            own = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
            with attach(model, own, sync=sync, period=period) as together:
                comm.ledger.load_state_dict({"messages": 0, "bytes": 0})
                if saved is not None:
                    model.load_state_dict(saved[0])
                    own.load_state_dict(saved[1])
                    together.load_state_dict(saved[2])
                while together.clock.step < steps:
                    own.zero_grad()
                    away = model.weight[0] - c
                    (0.5 * away @ a @ away).backward()
                    own.step()
                state = copy.deepcopy((model.state_dict(), own.state_dict(), together.state_dict()))
                if hasattr(together.sync, "finish"):
                    together.sync.finish()
            return state

        whole = run(steps)
        for stop in stops:
            resumed = run(steps, run(stop))
            assert torch.equal(resumed[0]["weight"], whole[0]["weight"]), stop
            assert resumed[2]["clock"] == whole[2]["clock"], stop
            for count in ("messages", "bytes"):
                assert resumed[2]["ledger"][count] == whole[2]["ledger"][count], stop
            for name, value in whole[2]["sync"].items():
                other = resumed[2]["sync"][name]
                assert torch.equal(other, value) if isinstance(value, torch.Tensor) else other == value, name

    eq.spawn(loop, 4, virtual=True)


def mean_loss(problem: Problem, x: np.ndarray) -> float:
    away = x - problem.centres
    return float(0.5 * np.einsum("ni,nij,nj->n", away, problem.matrices, away).mean())


def refuses(sync: Any, words: str, workers: int = 8) -> None:
    with pytest.raises(UserError, match=words):
        solve(Problem.make(workers), sync, steps=1, lr=0.1)


# -- the round itself -------------------------------------------------------------------------------------------------
def gossiped(topology: Topology, vectors: np.ndarray, rounds: int, dtype: torch.dtype, **choices: Any) -> np.ndarray:
    def loop(comm: Comm) -> np.ndarray:
        mixing = Mixing(Context(comm), topology, **choices)
        x = torch.from_numpy(vectors[comm.rank]).to(dtype)
        for _ in range(rounds):
            mixing.mix(x)
        assert mixing.context.clock.rounds == rounds
        return x.double().numpy()

    return np.stack(eq.spawn(loop, len(vectors), virtual=True))


@pytest.mark.parametrize("size", [2, 5, 8])
@pytest.mark.parametrize("topology", GRAPHS, ids=repr)
def test_rounds_multiply_by_the_matrices(topology: Topology, size: int) -> None:
    vectors = np.random.default_rng(1).standard_normal((size, 3))
    expected = vectors
    for round in range(4):
        expected = topology.on(size).matrix(round) @ expected
    np.testing.assert_allclose(gossiped(topology, vectors, 4, torch.float64), expected, atol=1e-14)


def test_bfloat16_on_the_wire_keeps_the_mean() -> None:
    """Rounded messages blur the models a little and move the mean by no more than float32 rounds."""
    vectors = np.random.default_rng(2).standard_normal((5, 64)).astype(np.float32)
    mixed = gossiped(Ring(), vectors, 40, torch.float32, wire=torch.bfloat16)
    assert np.abs(mixed.mean(0) - vectors.mean(0)).max() < 1e-6
    assert 1e-5 < np.abs(mixed - vectors.mean(0)).max() < 2**-7


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
        assert not mixing.under_way
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


def test_workers_must_mean_the_same_valid_graph() -> None:
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
