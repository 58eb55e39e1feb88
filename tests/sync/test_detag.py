from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.errors import UserError
from equipoise.core.vector import ModelSize
from equipoise.sync import DeTAG
from equipoise.sync.accelerated import GossipPlan, etas
from equipoise.topology import Exponential, OnePeer, Ring, Star
from equipoise.wire import BFloat16

from .checks import (
    converges_to_the_optimum,
    follows,
    matrix_power,
    mild,
    refuses,
    resumes_from_any_step,
    same_on_processes,
    sends_what_cost_declares,
)
from .quadratic import Problem, error, solve


def fitted(weights: np.ndarray, rounds: int) -> np.ndarray:
    """T_R(M) / T_R(1 / delta), where M maps the spectrum of W without 1 to [-1, 1]: by eigenvectors, not by rounds."""
    values, vectors = np.linalg.eigh(weights)
    low, high = values[0], values[-2]
    scaled = (2 * values - high - low) / (high - low)
    factors = np.polynomial.Chebyshev.basis(rounds)(scaled) / np.polynomial.Chebyshev.basis(rounds)(scaled[-1])
    return np.asarray(vectors * factors @ vectors.T)


@pytest.mark.parametrize(("length", "rounds"), [(1, 2), (1, 3), (3, 2)])
def test_is_its_equations(length: int, rounds: int) -> None:
    """Corrected steps, then all rounds at once, on a slack ring."""
    gossip = fitted(Ring(slack=0.1).on(8).matrix(), rounds)

    def reference(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
        x = correction = directions = np.zeros_like(problem.centres)
        path = []
        for step in range(steps):
            direction = np.einsum("nij,nj->ni", problem.matrices, x - problem.centres) + correction
            x, directions = x - lr * direction, directions + direction / length
            if (step + 1) % length == 0:
                correction = correction - directions + gossip @ directions
                x, directions = gossip @ x, np.zeros_like(x)
            path.append(x)
        return path

    follows(DeTAG(Ring(slack=0.1), rounds=rounds), reference, 18, period=length)


@pytest.mark.parametrize(("workers", "slack", "period"), [(8, 1.0, 1), (8, 0.02, 1), (5, 1.0, 3)])
def test_exact_at_every_step(workers: int, slack: float, period: int) -> None:
    converges_to_the_optimum(DeTAG(Ring(slack=slack)), workers, steps=150, lr=0.3, period=period)


def test_momentum_is_that_of_one_worker() -> None:
    converges_to_the_optimum(DeTAG(), 8, steps=150, lr=0.2, momentum=0.4)


def test_a_slack_graph_takes_the_same_steps() -> None:
    """Rounds use both ends of the spectrum, and slack only moves and scales it."""
    problem = Problem.make(8)
    tight, slack = (solve(problem, DeTAG(Ring(slack=s)), steps=20, lr=0.02) for s in (1.0, 0.01))
    assert np.abs(tight - slack).max() < 1e-10
    assert np.abs(tight - solve(problem, DeTAG(rounds=1), steps=20, lr=0.02)).max() > 1e-4


@pytest.mark.parametrize("rounds", [1, 3])
def test_blocks_of_a_round_are_the_whole(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round goes through [x | z] block by block, where one block has the end of x and the start of z."""
    problem = Problem.make(4)
    whole = solve(problem, DeTAG(rounds=rounds), steps=5, lr=0.05, period=2)
    monkeypatch.setattr("equipoise.sync.mixing._BLOCK", 3)
    assert np.array_equal(whole, solve(problem, DeTAG(rounds=rounds), steps=5, lr=0.05, period=2))


def phases(problem: Problem, lr: float, count: int, gossip: np.ndarray) -> list[np.ndarray]:
    """X' = AG(X) - a AG(Y),  Y' = AG(Y) + G - G_before, from Y = G_before = 0."""
    x = y = before = np.zeros_like(problem.centres)
    path = []
    for _ in range(count):
        g = np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        x, y, before = gossip @ x - lr * gossip @ y, gossip @ y + g - before, g
        path.append(x)
    return path


@pytest.mark.parametrize("kind", ["accelerated", "chebyshev"])
@pytest.mark.parametrize("overlap", [False, True])
def test_is_its_equations_and_frozen_within_a_phase(kind: str, overlap: bool) -> None:
    graph = Ring().on(8)

    def reference(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
        path = phases(problem, lr, steps // 3, matrix_power(graph.matrix(), etas(kind, graph.rate(), 3)))
        frozen = [np.zeros_like(problem.centres), *path]
        return [frozen[(step + 1) // 3] for step in range(steps)]

    follows(DeTAG(rounds=3, gossip=kind, frozen=True, overlap=overlap), reference, 24)


@pytest.mark.parametrize(("rounds", "lr", "steps"), [(2, 0.4, 140), (3, 0.4, 126)])
@pytest.mark.parametrize("workers", [4, 5])
def test_exact(workers: int, rounds: int, lr: float, steps: int) -> None:
    converges_to_the_optimum(DeTAG(rounds=rounds, frozen=True), workers, steps=steps, lr=lr)


def test_exact_with_one_plain_round_and_with_momentum() -> None:
    converges_to_the_optimum(DeTAG(rounds=1, gossip="plain", frozen=True), 5, steps=90, lr=0.3)
    converges_to_the_optimum(DeTAG(frozen=True), 5, steps=150, lr=0.2, momentum=0.4)


def test_weight_decay_is_that_of_the_mean_problem() -> None:
    problem = mild(5)
    points = solve(problem, DeTAG(), steps=150, lr=0.4 / problem.smoothness, weight_decay=0.3)
    right = np.einsum("nij,nj->i", problem.matrices, problem.centres) / 5
    optimum = np.linalg.solve(problem.matrices.mean(0) + 0.3 * np.eye(5), right)
    assert np.abs(points - optimum).max() < 1e-8


def test_adam_reaches_the_optimum() -> None:
    problem = Problem.make(5)

    def decay(step: int, together: Any, x: np.ndarray) -> None:
        together.optimizer.param_groups[0]["lr"] *= 0.98

    points = solve(problem, DeTAG(), steps=300, lr=0.1, optimizer=torch.optim.Adam, on_step=decay)
    assert error(problem, points) < 0.02
    assert np.abs(points - points.mean(0)).max() < 0.01


@pytest.mark.parametrize("rounds", [2, 6])
def test_tracker_keeps_the_mean_of_the_gradients(rounds: int) -> None:
    """At every step, also in the middle of a phase and while messages travel."""
    gaps = []

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        with together.comm.uncounted():
            gaps.append(together.sync.tracker_gap)

    solve(Problem.make(8), DeTAG(rounds=rounds, frozen=True, overlap=True), steps=60, lr=0.02, on_step=on_step)
    assert max(gaps) < 1e-12


def test_phases_stay_flat_as_a_ring_grows_and_rounds_of_plain_tracking_do_not() -> None:
    """On matrices: the method was shown to follow them above. Every method with its best step of a grid."""
    grid = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95)

    def tracking(problem: Problem, lr: float, weights: np.ndarray, limit: int) -> int:
        """Rounds of DSGT to an error of 1e-6."""
        x = np.zeros_like(problem.centres)
        y = g = np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        for round in range(1, limit):
            x = weights @ (x - lr * y)
            new = np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
            y, g = weights @ y + new - g, new
            far = np.abs(x - problem.optimum).max()
            if not far < 1e3:
                break
            if far < 1e-6:
                return round
        return limit

    found_phases, found_rounds = [], []
    for size in (8, 16, 32):
        problem, graph = Problem.make(size), Ring().on(size)
        scale = np.linalg.eigvalsh(problem.matrices.mean(0))[-1]
        gossip = matrix_power(graph.matrix(), list(GossipPlan.make(graph, "accelerated", None, "DeTAG").etas))
        best = 400
        for lr in grid:
            with np.errstate(all="ignore"):
                path = phases(problem, lr / scale, best, gossip)
            near = [k for k, x in enumerate(path) if np.abs(x - problem.optimum).max() < 1e-6]
            best = min([best, *near[:1]])
        found_phases.append(best)
        limit = 6000
        for lr in grid:
            limit = min(limit, tracking(problem, lr / scale, graph.matrix(), limit))
        found_rounds.append(limit)
    assert found_phases[2] <= found_phases[0] < 60
    assert found_rounds[1] > 3 * found_rounds[0]
    assert found_rounds[2] > 3 * found_rounds[1]


def test_bad_rounds_and_graphs_are_refused() -> None:
    with pytest.raises(UserError, match="at least 1"):
        DeTAG(rounds=0)
    refuses(DeTAG(rounds=1, frozen=True), "gossip='plain'")
    refuses(DeTAG(rounds=1, frozen=True), "disagreement by 1.03", workers=16)
    with pytest.raises(UserError, match="frozen=True"):
        DeTAG(overlap=True)
    refuses(DeTAG(OnePeer()), "same graph in every round")
    refuses(DeTAG(Exponential()), "symmetric weights")


def test_costs_resumes_and_runs_on_processes() -> None:
    assert DeTAG().cost(ModelSize(100, 4), 0, 8, True) == (4, 3200)  # two rounds on a ring of 8
    assert DeTAG().cost(ModelSize(100, 4), 0, 8, False) == (0, 0)
    sends_what_cost_declares(DeTAG(rounds=2))
    sends_what_cost_declares(DeTAG(), period=2, sizes=(8,))
    sends_what_cost_declares(DeTAG(Star()), sizes=(5,), wire=BFloat16())
    resumes_from_any_step(DeTAG(rounds=2))
    resumes_from_any_step(DeTAG(rounds=2), period=4)
    same_on_processes(DeTAG(rounds=2), period=2)
    assert DeTAG(frozen=True).cost(ModelSize(100, 4), 0, 8, True) == (2, 1600)
    sends_what_cost_declares(DeTAG(rounds=3, frozen=True))
    sends_what_cost_declares(DeTAG(Star(), rounds=3, frozen=True, overlap=True), sizes=(5,), wire=BFloat16())
    for overlap in (False, True):
        resumes_from_any_step(DeTAG(rounds=3, frozen=True, overlap=overlap))
    same_on_processes(DeTAG(rounds=3, frozen=True, overlap=True))


def test_the_first_phase_moves_nothing() -> None:
    """There is no tracker yet: not even weight decay may act, which needs no gradient."""

    def loop(comm: Comm) -> None:
        model = nn.Linear(5, 1, bias=False)
        nn.init.ones_(model.weight)
        own = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)
        with eq.attach(model, own, sync=DeTAG(rounds=3, frozen=True)) as together:
            for step in range(6):
                own.zero_grad()
                model(torch.randn(2, 5)).sum().backward()
                own.step()
                assert bool((model.weight == 1).all()) == (step < 5), step
                if step < 5:
                    assert not own.state
            assert together.clock.step == 6

    eq.spawn(loop, 4, virtual=True)


def test_messages_on_their_way_are_dropped_by_a_restart() -> None:
    """What neighbours sent before it belongs to other trackers: these would no longer sum to the gradients."""
    gaps = []

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        with together.comm.uncounted():
            if step == 7:
                together.sync.restart(together.step.flat.x, together.step.flat.x, replaced=False)
            gaps.append(together.sync.tracker_gap)

    solve(Problem.make(8), DeTAG(rounds=3, frozen=True, overlap=True), steps=20, lr=0.02, on_step=on_step)
    assert max(gaps) < 1e-12


def test_options_that_frozen_phases_cannot_follow_are_refused() -> None:
    """The rounds that are given are taken, whatever the heterogeneity; a phase has a round at every step."""
    for options in ({"rounds": 3, "frozen": True}, {}):
        with pytest.raises(UserError, match="leave rounds out"):
            DeTAG(heterogeneity=20.0, **options)
    with pytest.raises(UserError, match="communicates at every step"):
        solve(Problem.make(4), DeTAG(frozen=True), steps=1, lr=0.1, period=2)


def test_heterogeneous_data_makes_phases_longer() -> None:
    phases = []
    for heterogeneity in (1.0, 8.0**3):
        sync = DeTAG(frozen=True, heterogeneity=heterogeneity)
        solve(
            Problem.make(8), sync, steps=1, lr=0.1, on_step=lambda step, together, x: phases.append(together.sync.phase)
        )
    assert phases == [3] * 8 + [8] * 8  # 1/2 ln(8) / sqrt(gap) is 2.35 steps, and three times that
