"""Workers with unequal shares: what a round conserves, and that every method then solves the weighted problem."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.core.errors import UserError
from equipoise.loop.attach import attach
from equipoise.loop.evaluate import vector_of
from equipoise.sync.matcha import MATCHA
from equipoise.sync.mixing import RoundLinks, mixing_gap, symmetrised, weighted
from equipoise.topology import Complete, Edges, Hypercube, Matching, OnePeer, Path, Ring, Star, Topology, Torus

from .checks import mild
from .quadratic import Problem

SHARES = [1 / 15, 2 / 15, 4 / 15, 8 / 15]
S = eq.sync
GRAPHS = [
    Ring(),
    Path(),
    Star(),
    Complete(),
    Hypercube(),
    Torus(),
    Matching(),
    Ring(lazy=True),
    Star(slack=0.3),
    Ring(drop=0.3),
]
AVERAGING = [
    S.DPSGD(),
    S.DPSGD(Star()),
    S.DPSGD(Ring(drop=0.2)),
    S.GossipPGA(every=3),
    S.DSGDmN(),
    S.QGDSGDm(),
    S.MATCHA(),
    S.ADPSGD(),
]
EXACT = [
    S.DSGT(),
    S.DSGT(OnePeer()),
    S.KGT(),
    S.EDM(beta=0.3),
    S.D2(),
    S.DeTAG(),
    S.DeFacto(),
    S.DeFacto(factors="tree"),
    S.RelaySGD(),
]
PULLS = [S.EASGD(), S.EAMSGD(delta=0.5), S.MGRAWA(), S.LGRAWA()]
OTHERS = [S.SGP(), S.MGDSGD()]


def matrix(topology: Topology, shares: list[float], round: int) -> np.ndarray:
    weights = np.zeros((topology.size, topology.size))
    for rank in range(topology.size):
        links = RoundLinks(topology.keeps(round, rank), topology.neighbours(round, rank), [])
        keeps, sources, _ = weighted(links, rank, shares)
        weights[rank, rank] = keeps
        for peer, weight in sources:
            weights[rank, peer] = weight
    return weights


def walk(
    problem: Problem, sync: Any, shares: list[float] | None, steps: int, lr: float, virtual: bool = True, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The workers' points, and the mean model, after some steps from points that differ."""
    n, dim = problem.centres.shape
    start = torch.from_numpy(np.random.default_rng(3).standard_normal((n, dim)))
    apart, common = options.pop("apart", False), options.pop("common", False)

    def loop(comm: Comm) -> tuple[np.ndarray, np.ndarray]:
        a, c = (torch.from_numpy(t[comm.rank]) for t in (problem.matrices, problem.centres))
        model = nn.Linear(dim, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(model.weight)
        own = torch.optim.SGD(model.parameters(), lr=lr)
        share = None if shares is None else shares[comm.rank]
        with attach(model, own, sync=sync, share=share, **options) as together:
            if apart:
                together.step.wire.start(together.step.flat.gather())  # all began with the same model
                with torch.no_grad():
                    model.weight.copy_(start[0 if common else comm.rank][None])
            for _ in range(steps):
                own.zero_grad()
                away = model.weight[0] - c
                value = 0.5 * away @ a @ away
                value.backward()
                together.loss = value.item()
                own.step()
            with together.evaluating("mean") as middle:
                mean = middle.weight.detach().numpy()[0].copy()
        return model.weight.detach().numpy()[0].copy(), mean

    points, means = zip(*eq.spawn(loop, n, virtual=virtual, deterministic=True), strict=True)
    return np.stack(points), means[0]


def optimum(problem: Problem, shares: list[float]) -> np.ndarray:
    """Of sum_i pi_i f_i."""
    right = np.einsum("n,nij,nj->i", shares, problem.matrices, problem.centres)
    return np.linalg.solve(np.einsum("n,nij->ij", shares, problem.matrices), right)


@pytest.mark.parametrize("topology", GRAPHS, ids=repr)
def test_the_stationary_distribution_is_the_shares(topology: Topology) -> None:
    for size in (4, 8):
        stationary_distribution_is_the_shares(topology, size)


def stationary_distribution_is_the_shares(topology: Topology, size: int) -> None:
    bound = topology.on(size)
    pi = np.random.default_rng(size).uniform(0.2, 5.0, size)
    pi /= pi.sum()
    product = np.eye(size)
    for round in range(bound.cycle or 64):
        w = matrix(bound, pi.tolist(), round)
        # Sums of at most 8 numbers below 1.
        np.testing.assert_allclose(w.sum(1), 1.0, atol=1e-15)
        np.testing.assert_allclose(pi @ w, pi, atol=1e-15)
        assert (w >= 0).all()
        assert ((w > 0) <= (bound.matrix(round) > 0) | np.eye(size, dtype=bool)).all()
        alike = np.diag(pi**0.5) @ w @ np.diag(pi**-0.5)
        np.testing.assert_allclose(symmetrised(bound.matrix(round), pi.tolist()), alike, atol=1e-14)
        product = w @ product
    far = np.linalg.matrix_power(product, 4096)
    np.testing.assert_allclose(far, np.tile(pi, (size, 1)), atol=1e-9)
    gap = mixing_gap(bound, pi.tolist())
    values = np.sort(np.abs(np.linalg.eigvals(product)))
    assert 0 < gap <= 1
    if bound.cycle == 1:
        assert 1.0 - gap == pytest.approx(values[-2], abs=1e-12)


def test_equal_shares_leave_the_weights_alone() -> None:
    links = RoundLinks(0.3, [(1, 0.35), (2, 0.35)], [1, 2])
    assert weighted(links, 0, []) == links
    assert weighted(links, 0, [1 / 3] * 3).sources == links.sources


@pytest.mark.parametrize("sync", [*AVERAGING, *EXACT, *PULLS, *OTHERS], ids=repr)
def test_equal_shares_give_the_same_bits(sync: Any) -> None:
    problem = Problem.make(4)
    kind, options = type(sync), sync.options()
    runs = [
        walk(problem, kind(**options | {"weights": weights}), shares, 6, 0.05)
        for weights, shares in (("size", None), ("size", [0.25] * 4), ("uniform", None), ("uniform", SHARES))
    ]
    for points, mean in runs[1:]:
        assert np.array_equal(points, runs[0][0])
        assert np.array_equal(mean, runs[0][1])


@pytest.mark.parametrize("sync", AVERAGING, ids=repr)
def test_mixing_conserves_the_weighted_mean(sync: Any) -> None:
    problem = Problem(np.zeros((4, 5, 5)), np.zeros((4, 5)))
    start, before = walk(problem, sync, SHARES, 0, 0.1, apart=True)
    points, mean = walk(problem, sync, SHARES, 60, 0.1, apart=True)
    np.testing.assert_allclose(before, SHARES @ start, atol=1e-14)
    np.testing.assert_allclose(mean, before, atol=1e-13)
    assert np.abs(points - mean).max() < 0.05 * np.abs(start - before).max()


@pytest.mark.parametrize("sync", AVERAGING, ids=repr)
def test_mixing_conserves_the_weighted_mean_through_a_wire(sync: Any) -> None:
    problem = Problem(np.zeros((4, 5, 5)), np.zeros((4, 5)))
    start, before = walk(problem, sync, SHARES, 0, 0.1, apart=True)
    points, mean = walk(problem, sync, SHARES, 60, 0.1, apart=True, wire=eq.wire.BFloat16())
    # Replicas are float32, the models float64, and the terms cancel in the weighted sum.
    np.testing.assert_allclose(mean, before, atol=1e-13)
    assert np.abs(points - mean).max() < 0.05 * np.abs(start - before).max()


@pytest.mark.parametrize("sync", [*AVERAGING, *EXACT, *PULLS, *OTHERS], ids=repr)
def test_workers_that_agree_stay_where_they_are(sync: Any) -> None:
    problem = Problem(np.zeros((4, 5, 5)), np.zeros((4, 5)))
    points, mean = walk(problem, sync, SHARES, 7, 0.1, apart=True, common=True)
    start = np.random.default_rng(3).standard_normal((4, 5))[0]
    # A few dozen roundings in float64.
    np.testing.assert_allclose(points, np.tile(start, (4, 1)), rtol=0, atol=1e-13)
    np.testing.assert_allclose(mean, start, rtol=0, atol=1e-13)


@pytest.mark.parametrize("topology", [Ring(), Star()], ids=repr)
def test_d_psgd_approaches_the_weighted_optimum(topology: Topology) -> None:
    """It is its recursion on matrices, whose end is as far from the optimum of sum_i pi_i f_i as the step is long."""
    problem, steps, lr = mild(4), 15, 0.1
    aim, weights = optimum(problem, SHARES), matrix(topology.on(4), SHARES, 0)
    assert np.abs(aim - problem.optimum).max() > 0.1

    def recursion(lr: float, steps: int) -> np.ndarray:
        x = np.zeros_like(problem.centres)
        for _ in range(steps):
            x = weights @ (x - lr * np.einsum("nij,nj->ni", problem.matrices, x - problem.centres))
        return x

    points, mean = walk(problem, S.DPSGD(topology), SHARES, steps, lr)
    np.testing.assert_allclose(points, recursion(lr, steps), rtol=0, atol=1e-12)
    np.testing.assert_allclose(mean, SHARES @ points, rtol=0, atol=1e-14)
    errors = [np.abs(recursion(1.0 / part, 40 * part) - aim).max() for part in (128, 256, 512)]
    assert errors[-1] < 0.1  # a slow hub between fast workers mixes badly, as it must
    for one, half in itertools.pairwise(errors):
        assert one / half == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("sync", EXACT, ids=repr)
def test_exact_methods_reach_the_weighted_optimum(sync: Any) -> None:
    problem = mild(4)
    points, _ = walk(problem, sync, SHARES, 150, 0.3 / problem.smoothness)
    assert np.abs(points - optimum(problem, SHARES)).max() < 1e-4


@pytest.mark.parametrize("sync", [S.SGP(), S.SGP(Ring()), S.MGDSGD(rounds=4), S.MATCHA()], ids=repr)
def test_pushed_gathered_and_drawn_steps_count_by_share(sync: Any) -> None:
    """Nearer to the weighted optimum than to the plain one, which is 0.3 away."""
    problem = mild(4)
    aim = optimum(problem, SHARES)
    _, mean = walk(problem, sync, SHARES, 150, 0.05)
    assert np.abs(mean - aim).max() < 0.3 * np.abs(problem.optimum - aim).max()


@pytest.mark.parametrize("sync", [S.EASGD(pull=0.5), S.EAMSGD(pull=0.5)], ids=repr)
def test_elastic_rounds_conserve_the_weighted_sum(sync: Any) -> None:
    def loop(comm: Comm) -> tuple[torch.Tensor, torch.Tensor]:
        model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
        own = torch.optim.SGD(model.parameters(), lr=0.0)
        with attach(model, own, sync=sync, share=SHARES[comm.rank]) as together:
            model.weight.grad = torch.zeros_like(model.weight)
            own.step()
            with torch.no_grad():
                model.weight.fill_(float(comm.rank))
            sums = []
            for _ in range(3):
                centre = together.sync.centre().clone()
                weighed = comm.sum(model.weight.detach()[0] * 4 * SHARES[comm.rank])
                sums.append(centre + weighed)
                own.step()
        return torch.stack(sums), together.sync.centre()

    for sums, _ in eq.spawn(loop, 4, virtual=True):
        torch.testing.assert_close(sums[1:], sums[:1].expand(2, 3), rtol=0, atol=1e-14)


def test_pulled_centres_weigh_by_share() -> None:
    """All norms alike (exponent 0) and a full pull: one round is the weighted average."""
    problem = Problem.make(4)
    for sync in (S.MGRAWA(pull=1.0, exponent=0.0), S.LGRAWA(pull=1.0, exponent=0.0)):
        pulled, _ = walk(problem, sync, SHARES, 8, 0.05, period=4)
        averaged, _ = walk(problem, S.PeriodicAverage(), SHARES, 8, 0.05, period=4)
        np.testing.assert_allclose(pulled, averaged, atol=1e-14)


@pytest.mark.parametrize("sync", [S.DPSGD(), S.MATCHA(), S.ADPSGD(), S.DSGT(), S.EASGD(), S.SGP(Ring())], ids=repr)
def test_same_on_processes_and_costs_the_same(sync: Any) -> None:
    problem = Problem.make(4)
    runs = [walk(problem, sync, SHARES, 5, 0.05, virtual=virtual) for virtual in (True, False)]
    assert np.array_equal(runs[0][0], runs[1][0])
    assert np.array_equal(runs[0][1], runs[1][1])


def test_bytes_do_not_depend_on_shares() -> None:
    def sent(sync: Any, shares: list[float]) -> int:
        def loop(comm: Comm) -> int:
            model = nn.Linear(7, 1)
            own = torch.optim.SGD(model.parameters(), lr=0.1)
            with attach(model, own, sync=sync, share=shares[comm.rank]) as together:
                for _ in range(6):
                    model(torch.ones(1, 7)).sum().backward()
                    together.loss = 1.0
                    own.step()
            return comm.ledger.bytes

        return sum(eq.spawn(loop, 4, virtual=True))

    for sync in [*AVERAGING, *EXACT, *PULLS, *OTHERS]:
        assert sent(sync, SHARES) == sent(sync, [0.25] * 4)


def test_directed_graphs_say_that_all_count_alike(caplog: pytest.LogCaptureFixture) -> None:
    points, _ = walk(Problem.make(8), S.DPSGD(OnePeer()), [1 / 16] * 4 + [3 / 16] * 4, 4, 0.05)
    assert "count alike although shares differ" in caplog.text
    uniform, _ = walk(Problem.make(8), S.DPSGD(OnePeer(), weights="uniform"), None, 4, 0.05)
    assert np.array_equal(points, uniform)


def test_a_worker_without_examples_is_refused() -> None:
    with pytest.raises(UserError, match="weights='uniform'"):
        walk(Problem.make(4), S.DPSGD(), [0.0, 0.5, 0.25, 0.25], 1, 0.1)


def test_alpha_follows_the_shares_and_draws_do_not() -> None:
    graph = Edges(links=[(0, 1), (1, 2), (2, 3), (0, 2)])
    plain, by_share = MATCHA(graph).planned(4), MATCHA(graph).planned(4, SHARES)
    assert plain.probabilities == by_share.probabilities
    assert plain.matchings == by_share.matchings
    assert 0 < by_share.rho < 1
    # rho by the definition: the mean of S^T S over all draws, S = P^(1/2) W P^(-1/2).
    pi, total = np.array(SHARES), np.zeros((4, 4))
    for draw in np.ndindex(*[2] * len(plain.matchings)):
        probability = np.prod([p if b else 1 - p for b, p in zip(draw, plain.probabilities, strict=True)])
        w = np.zeros((4, 4))
        for b, matching in zip(draw, plain.matchings, strict=True):
            for i, j in matching if b else ():
                w[i, j] = w[j, i] = by_share.alpha
        w += np.diag(1.0 - w.sum(1))
        alike = symmetrised(w, SHARES)
        total += probability * alike.T @ alike
    rho = np.linalg.norm(total - np.sqrt(np.outer(pi, pi)), 2)
    assert rho == pytest.approx(by_share.rho, abs=1e-12)


@pytest.mark.parametrize("weights", ["size", "samples", "uniform"])
def test_the_mean_inside_a_round_weighs_as_the_round_would(weights: str) -> None:
    """Three workers in the middle of local steps: the mean model is that of a round at this moment."""

    def loop(comm: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        torch.manual_seed(comm.rank)
        model = nn.Linear(4, 1)
        own = torch.optim.SGD(model.parameters(), lr=0.1)
        share = [0.2, 0.3, 0.5][comm.rank]
        sync = S.PeriodicAverage(weights=weights)
        with eq.attach(model, own, sync=sync, period=4, share=share) as together:
            for _ in range(6):
                together.batch = 2 + 3 * comm.rank
                own.zero_grad()
                model(torch.randn(2, 4)).pow(2).mean().backward()
                own.step()
            mean = vector_of(together.step, "mean")
            assert mean is not None
            local = together.flat.x.clone()
            together.sync.averaging.average(together.flat.x)
        return mean.numpy(), local.numpy(), together.flat.x.numpy()

    rows = eq.spawn(loop, 3, virtual=True)
    weight = {"size": [0.2, 0.3, 0.5], "samples": np.array([2, 5, 8]) / 15, "uniform": [1 / 3] * 3}[weights]
    expected = sum(w * row[1] for w, row in zip(weight, rows, strict=True))
    for mean, _, averaged in rows:
        np.testing.assert_allclose(mean, expected, atol=1e-6)
        np.testing.assert_allclose(averaged, expected, atol=1e-6)


def one_parameter() -> nn.Module:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    return model


@pytest.mark.parametrize("sync", [S.EASGD(), S.MGRAWA(), S.LGRAWA()])
@pytest.mark.parametrize(("weights", "mean"), [("size", -0.5), ("uniform", 0.0)])
def test_a_run_that_ends_inside_a_round_returns_the_weighted_mean(
    sync: Any, weights: str, mean: float, tmp_path: FilePath
) -> None:
    """A quarter of the examples pulls x towards 1, the rest towards -1: x_i = +-(1 - 0.9^4) after four steps."""
    blocks = tmp_path / "blocks.json"
    blocks.write_text(json.dumps({"blocks": [list(range(8)), list(range(8, 32))]}))
    targets = torch.tensor([1.0] * 8 + [-1.0] * 24, dtype=torch.float64)[:, None]
    run = eq.train(
        one_parameter,
        lambda outputs, wanted: 0.5 * ((outputs - wanted) ** 2).mean(),
        (torch.ones(32, 1, dtype=torch.float64), targets),
        workers=2,
        partition=eq.partition.FromFile(path=str(blocks)),
        batch=4,
        sync=dataclasses.replace(sync, weights=weights),
        period=50,
        steps=4,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    assert run.model.weight.item() == pytest.approx(mean * (1 - 0.9**4), abs=1e-12)
