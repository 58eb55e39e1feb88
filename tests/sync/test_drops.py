"""Methods on graphs whose links are down in some rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.sync.accelerated import GossipPlan
from equipoise.topology import OnePeer, Ring

from .checks import (
    converges_to_the_optimum,
    follows,
    matrix_power,
    refuses,
    resumes_from_any_step,
    same_on_processes,
    sends_what_cost_declares,
)
from .quadratic import Problem, solve

S = eq.sync
RING = Ring(drop=0.25)
EXACT = [S.DSGT(RING), S.KGT(RING), S.DeTAG(RING), S.DeTAG(RING, frozen=True), S.DeTAG(RING, frozen=True, overlap=True)]
BIASED = [S.DPSGD(RING), S.DSGDmN(RING, beta=0.5), S.QGDSGDm(RING, beta=0.5), S.MGDSGD(RING), S.GossipPGA(RING)]
OTHERS = [S.DPSGD(RING, combine="before", overlap=True), S.ADPSGD(RING)]


def name(sync: Any) -> str:
    words = [key for key in ("frozen", "overlap") if getattr(sync, key, False)]
    return "-".join([type(sync).__name__, *words])


@pytest.mark.parametrize("sync", [*EXACT, *BIASED, *OTHERS], ids=name)
def test_no_round_moves_the_mean_and_all_reach_it(sync: Any) -> None:
    """Steps bring workers apart; then the learning rate is 0, and rounds alone are left."""
    steps, start = 70, 6
    seen = np.zeros((steps, 4, 5))

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        seen[step, together.comm.rank] = x
        if step == start:
            together.optimizer.param_groups[0]["lr"] = 0.0

    solve(Problem.make(4), sync, steps=steps, lr=0.05, on_step=on_step)
    means = seen[start:].mean(1)
    np.testing.assert_allclose(means, np.broadcast_to(means[0], means.shape), rtol=0, atol=1e-14)
    apart = np.ptp(seen, axis=1).max(1)
    assert apart[start] > 1e-3
    assert apart[-1] < 1e-4


@pytest.mark.parametrize(("sync", "steps"), list(zip(EXACT, (100, 100, 80, 170), strict=False)))
def test_exact_methods_stay_exact(sync: Any, steps: int) -> None:
    converges_to_the_optimum(sync, 4, steps=steps, lr=0.5)


@pytest.mark.parametrize("sync", BIASED, ids=name)
def test_biased_methods_come_near(sync: Any) -> None:
    problem = Problem.make(4)
    mean = solve(problem, sync, steps=60, lr=0.1 / problem.smoothness).mean(0)
    assert np.abs(mean - problem.optimum).max() < 0.5 * np.abs(problem.optimum).max()


def polynomial(rounds: int, first: int, kind: str) -> np.ndarray:
    """What R rounds do: the plan's polynomial of W if no link is down, else the product of the W of these rounds."""
    graph = SOME.on(8)
    whole = graph.without_drops()
    plan = GossipPlan.make(whole, kind, rounds, "test")
    result = np.eye(8)
    if all(np.array_equal(graph.matrix(first + r), whole.matrix()) for r in range(rounds)):
        KINDS.add("accelerated")
        return matrix_power(np.eye(8) + plan.stretch * (whole.matrix() - np.eye(8)), list(plan.etas))
    KINDS.add("plain")
    for r in range(rounds):
        result = (np.eye(8) + plan.stretch * (graph.matrix(first + r) - np.eye(8))) @ result
    return result


SOME = Ring(drop=0.04)
KINDS: set[str] = set()


def gradients(problem: Problem, x: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("nij,nj->ni", problem.matrices, x - problem.centres))


def mg_dsgd(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
    x, path = np.zeros_like(problem.centres), []
    for step in range(steps):
        x = polynomial(3, 3 * step, "accelerated") @ (x - lr * gradients(problem, x))
        path.append(x)
    return path


def detag(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
    x, c, path = np.zeros_like(problem.centres), np.zeros_like(problem.centres), []
    for step in range(steps):
        mix, z = polynomial(2, 2 * step, "fitted"), gradients(problem, x) + c
        x, c = mix @ (x - lr * z), c - z + mix @ z
        path.append(x)
    return path


def frozen(problem: Problem, lr: float, steps: int) -> list[np.ndarray]:
    x = np.zeros_like(problem.centres)
    y, before, path = np.zeros_like(x), np.zeros_like(x), []
    for phase in range(steps // 3):
        mix, g = polynomial(3, 3 * phase, "accelerated"), gradients(problem, x)
        path += [x, x]
        x, y, before = mix @ x - lr * (mix @ y), mix @ y + g - before, g
        path.append(x)
    return path


@pytest.mark.parametrize(
    ("sync", "reference"),
    [(S.MGDSGD(SOME, rounds=3), mg_dsgd), (S.DeTAG(SOME), detag), (S.DeTAG(SOME, frozen=True, rounds=3), frozen)],
    ids=["mg-dsgd", "detag", "detag-frozen"],
)
def test_rounds_in_which_a_link_is_down_are_plain_gossip(sync: Any, reference: Any) -> None:
    KINDS.clear()
    follows(sync, reference, 18)
    assert {"accelerated", "plain"} == KINDS


def test_push_sum_takes_directed_links_that_fail() -> None:
    """The sum of w x is conserved, and w leaves 1."""
    steps, start = 80, 6
    seen, weights = np.zeros((steps, 4, 5)), np.ones((steps, 4))

    def on_step(step: int, together: Any, x: np.ndarray) -> None:
        seen[step, together.comm.rank], weights[step, together.comm.rank] = x, together.sync.weight
        if step == start:
            together.optimizer.param_groups[0]["lr"] = 0.0

    solve(Problem.make(4), S.SGP(OnePeer(drop=0.25)), steps=steps, lr=0.05, on_step=on_step)
    assert np.ptp(weights) > 0.1
    sums = (weights[..., None] * seen).sum(1)[start:]
    np.testing.assert_allclose(sums, np.broadcast_to(sums[0], sums.shape), rtol=0, atol=1e-13)
    assert np.ptp(seen[-1], axis=0).max() < 1e-4 < np.ptp(seen[start], axis=0).max()
    refuses(S.DPSGD(OnePeer(drop=0.25)), "would move the mean")


def test_methods_that_need_every_link_refuse() -> None:
    for sync in (S.D2(RING), S.EDM(RING), S.DeFacto(RING), S.RelaySGD(RING), S.MATCHA(RING)):
        refuses(sync, "drop = 0.25 links are down in some: omit drop")


def test_wires_with_replicas_are_refused_and_casts_are_not() -> None:
    for sync in (S.DPSGD(RING), S.DeTAG(RING), S.MGDSGD(RING)):
        assert sync.takes_wires(4)[0] == "casts"
    sends_what_cost_declares(S.DeTAG(RING), sizes=(5,), wire=eq.wire.BFloat16())


def test_costs_resumes_and_runs_on_processes() -> None:
    for sync in (S.DPSGD(RING), S.DeTAG(RING), S.MGDSGD(RING), S.ADPSGD(RING), S.DeTAG(RING, frozen=True)):
        sends_what_cost_declares(sync, sizes=(2, 5))
    resumes_from_any_step(S.DeTAG(RING, frozen=True, rounds=3))
    same_on_processes(S.DeTAG(RING))
