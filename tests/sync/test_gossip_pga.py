from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.core.vector import ModelSize
from equipoise.sync import DPSGD, GossipPGA, PeriodicAverage
from equipoise.topology import OnePeer, Ring

from .checks import (
    bias_halves_with_the_step,
    follows,
    mild,
    resumes_from_any_step,
    same_on_processes,
    sends_what_cost_declares,
)
from .quadratic import Problem, error, solve

EVERY = 4


def matrices(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
    weights, x, path = Ring().on(8).matrix(), np.zeros_like(problem.centres), []
    for step in range(steps):
        x = x - lr * np.einsum("nij,nj->ni", problem.matrices, x - problem.centres)
        x = np.broadcast_to(x.mean(0), x.shape) if (step + 1) % EVERY == 0 else weights @ x
        path.append(x)
    return path


def test_is_its_equations() -> None:
    follows(GossipPGA(every=EVERY), matrices, 13)


def points_of(sync: Any, steps: int, period: int = 1, **options: Any) -> np.ndarray:
    """Of all workers, after each step."""
    problem = Problem.make(4)
    seen = np.zeros((steps, *problem.centres.shape))

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        seen[step, together.comm.rank] = x

    solve(problem, sync, steps=steps, lr=0.05, period=period, on_step=on_step, **options)
    return seen


def test_between_averages_it_is_d_psgd_to_the_bit() -> None:
    gossip, both = points_of(DPSGD(), EVERY - 1), points_of(GossipPGA(every=EVERY), EVERY + 2)
    assert np.array_equal(both[: EVERY - 1], gossip)
    assert np.ptp(both[EVERY - 1], axis=0).max() == 0.0  # all workers hold the same bits after an average
    assert min(np.ptp(x, axis=0).max() for x in (both[EVERY - 2], both[EVERY])) > 1e-3


@pytest.mark.parametrize("wire", [None, eq.wire.TopK(keep=0.4)], ids=["float32", "top-k"])
def test_with_an_average_in_each_round_it_is_the_periodic_average_to_the_bit(wire: Any) -> None:
    """Through a wire too, with what a message leaves out in the model of its worker."""
    averaged = points_of(PeriodicAverage(), 6, period=2, wire=wire)
    assert np.array_equal(points_of(GossipPGA(every=1), 6, period=2, wire=wire), averaged)


def test_where_links_weigh_nothing_it_is_the_periodic_average_of_every_hth_round() -> None:
    alone = points_of(GossipPGA(Ring(slack=1e-15), every=EVERY), 9)
    np.testing.assert_allclose(alone, points_of(PeriodicAverage(), 9, period=EVERY), rtol=0, atol=1e-13)


@pytest.mark.parametrize("topology", [Ring(), OnePeer()], ids=["ring", "one-peer"])
@pytest.mark.parametrize("wire", [None, eq.wire.BFloat16()], ids=["float32", "bfloat16"])
def test_a_round_moves_no_mean(topology: Any, wire: Any) -> None:
    """With plain SGD the mean moves by the mean gradient alone, also where a wire rounds."""
    problem, lr = Problem.make(4), 0.05
    seen = points_of(GossipPGA(topology, every=EVERY), 9, wire=wire)
    before = np.zeros_like(seen[0])
    for number, after in enumerate(seen):
        gradients = np.einsum("nij,nj->ni", problem.matrices, before - problem.centres)
        averaged = (number + 1) % EVERY == 0
        if wire is None or not averaged:  # an average through a wire leaves something for the next one
            np.testing.assert_allclose(after.mean(0), (before - lr * gradients).mean(0), rtol=0, atol=1e-6)
        before = after


def test_replicas_begin_at_the_average() -> None:
    """Were they those of the round before, gossip would bring back the disagreement that the average has removed."""
    problem, apart = mild(4), []

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        if step == EVERY - 1:
            for group in together.optimizer.param_groups:
                group["lr"] = 0.0
        if step >= EVERY - 1:
            apart.append(x)

    sync, wire = GossipPGA(every=EVERY), eq.wire.TopK(keep=0.4, residual="feedback")
    solve(problem, sync, steps=EVERY + 2, lr=0.2, wire=wire, on_step=on_step)
    assert np.ptp(np.array(apart), axis=0).max() < 1e-6


def test_its_bias_halves_with_the_step_and_is_smaller_than_that_of_gossip() -> None:
    bias_halves_with_the_step(GossipPGA(every=EVERY), 4, steps=80, lr=0.2, last=EVERY)
    problem = mild(8)
    errors = [
        error(problem, np.broadcast_to(solve(problem, sync, steps=120, lr=0.2 / problem.smoothness).mean(0), (8, 5)))
        for sync in (DPSGD(), GossipPGA(every=EVERY))
    ]
    assert errors[1] < 0.5 * errors[0]


def test_costs_resumes_and_runs_on_processes() -> None:
    ring, average = GossipPGA(every=3).cost(ModelSize(80, 4), 0, 8, True), (14, 4 * (70 + 70))
    assert ring == (2, 640)
    assert GossipPGA(every=3).cost(ModelSize(80, 4), 0, 8, True, 2) == average
    sends_what_cost_declares(GossipPGA(every=3), period=2, steps=8)
    sends_what_cost_declares(GossipPGA(every=2), sizes=(5,), wire=eq.wire.Int8())
    resumes_from_any_step(GossipPGA(OnePeer(), every=3))
    same_on_processes(GossipPGA(every=3))


def test_replicas_begin_at_the_mean_and_not_at_the_residual_in_a_model() -> None:
    """What a message left out is in the model of one worker, and its neighbours know nothing of it."""
    replicas: dict[int, tuple[torch.Tensor, dict[int, torch.Tensor], np.ndarray]] = {}

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        channel = together.sync.mixing.channel
        others = {rank: held.clone() for rank, held in channel.others.items()}
        replicas[together.comm.rank] = channel.own.clone(), others, x

    solve(Problem.make(4), GossipPGA(every=2), steps=2, lr=0.05, wire=eq.wire.TopK(keep=0.4), on_step=on_step)
    assert any((replicas[0][2] != x).any() for _, _, x in replicas.values()), "residuals are in the models"
    for own, others, _ in replicas.values():
        assert torch.equal(own, replicas[0][0])
        assert all(torch.equal(held, replicas[rank][0]) for rank, held in others.items())
