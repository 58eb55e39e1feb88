from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.loop.attach import attach
from equipoise.simulate.cluster import Cluster, Link
from equipoise.sync import ADPSGD, DPSGD
from equipoise.sync.ad_psgd import Pairs
from equipoise.topology import Exponential, Matching, Path, Random, Ring, Topology

from .checks import (
    bias_halves_with_the_step,
    follows,
    learns,
    refuses,
    resumes_from_any_step,
    same_on_processes,
    sends_what_cost_declares,
)
from .quadratic import Problem, solve


@pytest.mark.parametrize("base", [Ring(), Path(), Random(seed=2), Matching(seed=1)], ids=repr)
def test_pairs_are_maximal_matchings_of_the_graph(base: Topology) -> None:
    for size in (2, 5, 8):
        pairs, graph = Pairs(base).on(size), base.on(size)
        used = set()
        for round in range(60):
            partner = {rank: [peer for peer, _ in pairs.neighbours(round, rank)] for rank in range(size)}
            edges = {(a, b) for a in range(size) for b, _ in graph.neighbours(round, a)}
            for a, (b, *more) in ((a, peers) for a, peers in partner.items() if peers):
                assert not more
                assert partner[b] == [a]
                assert (a, b) in edges
                used.add((a, b))
            assert all(partner[a] or partner[b] for a, b in edges), f"two neighbours of {size} were left alone"
        if graph.cycle == 1:
            assert used == edges, f"every link of {size} workers has its turn"


def matrices(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
    """A round's average arrives with the next step: D-PSGD that combines first, one round late."""
    pairs, x = Pairs(Ring(), 4).on(8), np.zeros_like(problem.centres)
    path = []
    for step in range(steps):
        g = np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        x = (pairs.matrix(step - 1) @ x if step else x) - lr * g
        path.append(x)
    return path


def test_is_its_equations() -> None:
    follows(ADPSGD(seed=4), matrices, 24)


@pytest.mark.parametrize("period", [1, 3])
def test_only_the_steps_move_the_mean(period: int) -> None:
    problem, lr = Problem.make(5), 0.05
    x = np.zeros((31, 5, 5))

    def on_step(step: int, together: Any, point: np.ndarray) -> None:
        x[step + 1, together.comm.rank] = point

    solve(problem, ADPSGD(), steps=30, lr=lr, period=period, on_step=on_step)
    g = np.einsum("nij,tnj->tni", problem.matrices, x[:-1] - problem.centres)
    np.testing.assert_allclose(x[1:].mean(1), (x[:-1] - lr * g).mean(1), atol=2e-16 * 10)


def test_both_ends_use_the_same_difference() -> None:
    """Without steps the sum of a pair is kept to the last bit of each, in single precision and over many rounds."""

    def loop(comm: Any) -> np.ndarray:
        model = nn.Linear(64, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with attach(model, optimizer, sync=ADPSGD()):
            torch.manual_seed(comm.rank)
            nn.init.normal_(model.weight)
            first = model.weight.detach().double().numpy()[0].copy()
            for _ in range(60):
                model.weight.grad = torch.zeros_like(model.weight)
                optimizer.step()
        return np.stack([first, model.weight.detach().double().numpy()[0]])

    points = np.stack(eq.spawn(loop, 4, virtual=True))
    assert np.abs(points[:, 1].mean(0) - points[:, 0].mean(0)).max() < 2e-7
    assert np.abs(points[:, 1] - points[:, 0].mean(0)).max() < 1e-3


def simulated_seconds(sync: Any) -> float:
    def loop(comm: Any) -> float:
        model = nn.Linear(1000, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with attach(model, optimizer, sync=sync):
            for _ in range(20):
                model.weight.grad = torch.zeros_like(model.weight)
                optimizer.step()
        return comm.now

    return max(eq.spawn(loop, 4, virtual=True, cluster=Cluster([10.0] * 4, Link(latency=0.09))))


def test_communication_overlaps_with_computation() -> None:
    assert simulated_seconds(ADPSGD()) == pytest.approx(20 * 0.1, abs=0.1)  # the end may wait for the last message
    assert simulated_seconds(DPSGD()) > 20 * 0.18


def test_gap_is_that_of_the_average_draw() -> None:
    """Pairs of all workers leave 1/2 - 1 / (2 (n - 1)) of the squared disagreement, on average."""
    gaps = []

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        gaps.append(together.sync.spectral_gap)

    solve(Problem.make(4), ADPSGD(Matching()), steps=1, lr=0.1, on_step=on_step)
    assert gaps[0] == pytest.approx(1 - (1 / 3) ** 0.5, abs=0.1)


def test_bias_halves_with_the_step() -> None:
    bias_halves_with_the_step(ADPSGD(), 5, steps=220, lr=0.04, last=160, slack=0.5)


def test_learns_with_momentum_and_adam() -> None:
    learns(ADPSGD(), torch.optim.SGD, 0.02, momentum=0.9)
    learns(ADPSGD(), torch.optim.Adam, 0.05)


def test_costs_resumes_refuses_and_runs_on_processes() -> None:
    sends_what_cost_declares(ADPSGD())
    sends_what_cost_declares(ADPSGD(Path()), period=2)
    resumes_from_any_step(ADPSGD())
    resumes_from_any_step(ADPSGD(), period=3)
    same_on_processes(ADPSGD())
    refuses(ADPSGD(Exponential()), "undirected graph")
