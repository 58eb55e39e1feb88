"""DeTAG: gradient tracking with accelerated gossip."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import equipoise as eq

from ..core.errors import NonFinite
from ..core.progress_bar import bar, tracked
from ..sync.accelerated import FITTED, GossipPlan, etas, polynomial
from ..topology.base import Topology
from .runs import images, mean

# The paper's method moves the model once in R steps; by default it moves at every step, with R rounds after it.
PAPER, DEFAULT = "DeTAG", "DeTAG as by default here"


def rate(rings: tuple[int, int]) -> dict[str, float]:
    """Rounds in which the consensus distance on a ring falls tenfold."""
    few, many = rings
    counts = {kind: {n: _tenfold(kind, eq.topology.Ring().on(n)) for n in rings} for kind in ("accelerated", "plain")}
    growth = {f"{kind} gossip, rounds on a ring of {many} / of {few}": r[many] / r[few] for kind, r in counts.items()}
    lead = counts["accelerated"][many] / counts["plain"][many]
    chebyshev = _tenfold("chebyshev", eq.topology.Ring().on(many)) / counts["plain"][many]
    return growth | {
        f"accelerated / plain rounds on a ring of {many}": lead,
        f"Chebyshev's / plain rounds on a ring of {many}": chebyshev,
    }


def _tenfold(kind: str, topology: Topology) -> int:
    """From the eigenvalues of W: R rounds multiply an eigenvector by a polynomial of its eigenvalue."""
    values = np.sort(np.linalg.eigvalsh(topology.matrix(0)))[:-1]  # without the eigenvalue 1 of the mean
    rounds = 1
    while np.abs(polynomial(values, etas(kind, float(np.abs(values).max()), rounds))).max() > 0.1:
        rounds += 1
    return rounds


def exact(workers: int, steps: int) -> dict[str, float]:
    """Quadratics with different minima, full gradients, constant learning rate: final distance from the optimum."""
    problem = Quadratics(workers)
    ring, lazy = eq.topology.Ring(), eq.topology.Ring(lazy=True)

    def end(sync: Any, part: float) -> float:
        return problem.solve(sync, steps, part / problem.smoothness)[-1]

    coarse, fine = end(eq.sync.DPSGD(ring), 0.1), end(eq.sync.DPSGD(ring), 0.05)
    return {
        f"distance from the optimum, {PAPER}": end(eq.sync.DeTAG(ring, frozen=True), 0.1),
        "distance from the optimum, D-PSGD": coarse,
        "D-PSGD, distance at rate 0.1/L / at 0.05/L": coarse / fine,
        f"distance from the optimum, {DEFAULT}": end(eq.sync.DeTAG(ring), 0.1),
        "distance from the optimum, DSGT": end(eq.sync.DSGT(ring), 0.1),
        "distance from the optimum, D2": end(eq.sync.D2(lazy), 0.1),
    }


def rounds(rings: tuple[int, int], most: int, target: float) -> dict[str, float]:
    """Rounds until the quadratics are solved, each method with the best of three learning rates."""
    methods: dict[str, Callable[[], Any]] = {
        PAPER: lambda: eq.sync.DeTAG(eq.topology.Ring(), frozen=True),
        "DSGT": lambda: eq.sync.DSGT(eq.topology.Ring()),
        DEFAULT: lambda: eq.sync.DeTAG(eq.topology.Ring()),
        "D2, lazy ring": lambda: eq.sync.D2(eq.topology.Ring(lazy=True)),
    }
    few, many = rings
    counts: dict[str, dict[int, float]] = {name: {} for name in methods}
    for n, (name, sync) in tracked("methods", [*itertools.product(rings, methods.items())]):
        problem = Quadratics(n)
        each = {DEFAULT: GossipPlan.make(eq.topology.Ring().on(n), FITTED, None, "DeTAG").rounds}
        of_step = each.get(name, 1)
        tries = [
            problem.solve(sync(), max(1, most // of_step), part / problem.smoothness, target)
            for part in (0.7, 0.3, 0.1)
        ]
        counts[name][n] = of_step * min(len(t) if t[-1] <= target else math.inf for t in tries)
    growth = {f"{name}, rounds on a ring of {many} / of {few}": row[many] / row[few] for name, row in counts.items()}
    return growth | {f"{name}, rounds on a ring of {many}": row[many] for name, row in counts.items()}


class Quadratics:
    """f_i(x) = (x - c_i)' A_i (x - c_i) / 2, worker by worker, in double precision."""

    def __init__(self, workers: int, dimension: int = 5):
        rng = np.random.default_rng(0)
        raw = rng.standard_normal((workers, dimension, dimension))
        matrices = np.einsum("nij,nkj->nik", raw, raw) / dimension + 0.5 * np.eye(dimension)
        centres = rng.standard_normal((workers, dimension))
        best = np.linalg.solve(matrices.sum(0), np.einsum("nij,nj->i", matrices, centres))
        self.matrices, self.centres, self.best = (torch.from_numpy(a) for a in (matrices, centres, best))
        self.smoothness = float(max(np.linalg.eigvalsh(a)[-1] for a in matrices))

    def solve(self, sync: Any, steps: int, lr: float, target: float = 0.0) -> list[float]:
        """The largest distance of a worker from the optimum after each step. Stops at the target, or on divergence."""

        def loop(comm: Any) -> list[float]:
            a, c, distances = self.matrices[comm.rank], self.centres[comm.rank], []
            model = nn.Linear(len(c), 1, bias=False, dtype=torch.float64)
            nn.init.zeros_(model.weight)
            optimizer = torch.optim.SGD(model.parameters(), lr=lr)
            with eq.attach(model, optimizer, sync=sync):
                for _ in range(steps):
                    with torch.no_grad():
                        model.weight.grad = ((model.weight[0] - c) @ a)[None]
                    optimizer.step()
                    distance = (model.weight.detach()[0] - self.best).abs().max().reshape(1)
                    with comm.uncounted():
                        distances.append(float(comm.gather(distance).max()))
                    if distances[-1] <= target or not distances[-1] < 1e3:
                        break
            return distances

        results: list[list[float]] = eq.spawn(loop, len(self.centres), virtual=True)
        return results[0]


def unshuffled(
    workers: int, steps: int, batch: int, rates: tuple[float, ...], kappa: float, model: str, seeds: int, **of: Any
) -> dict[str, float]:
    """Images sorted by label: final loss of the mean model over seeds, each method with the best rate of the first."""
    data = images(**of)
    ring = eq.topology.Ring(slack=kappa)
    lazy = eq.topology.Ring(slack=kappa, lazy=True)
    methods = {
        PAPER: eq.sync.DeTAG(ring, frozen=True),
        DEFAULT: eq.sync.DeTAG(ring),
        "D-PSGD": eq.sync.DPSGD(ring),
        "D2": eq.sync.D2(lazy),
        "DSGT": eq.sync.DSGT(ring),
        "QG-DSGDm (later work)": eq.sync.QGDSGDm(ring),
    }
    losses: dict[str, float] = {}
    own: dict[str, float] = {}

    def ends(sync: Any, lr: float, seed: int) -> tuple[float, float]:
        how: dict[str, Any] = {"workers": workers, "steps": steps, "batch": batch, "model": model}
        try:
            run = data.train_with(sync=sync, partition=eq.partition.Sorted(), lr=lr, seed=seed, **how)
        except NonFinite:
            return math.inf, math.inf
        finally:
            advance(1)
        return run.result["models"]["mean"]["loss"], run.result["models"]["local"]["loss"]

    with bar("runs", len(methods) * (len(rates) + seeds - 1)) as advance:
        for name, sync in methods.items():
            first, lr = min((ends(sync, lr, 0), lr) for lr in rates)
            rows = [first, *(ends(sync, lr, seed) for seed in range(1, seeds))]
            losses[name], own[name] = mean(row[0] for row in rows), mean(row[1] for row in rows)
    rival = min(losses[name] for name in ("D-PSGD", "D2", "DSGT"))
    lead: dict[str, float] = {}
    for name in (PAPER, DEFAULT):
        lead[f"loss, {name} / D-PSGD"] = losses[name] / losses["D-PSGD"]
        lead[f"loss, {name} / best of D-PSGD, D2, DSGT"] = losses[name] / rival
    others = {f"loss, {name}": loss for name, loss in losses.items()}
    return lead | others | {"loss of the workers' own models, DeTAG / D-PSGD": own[PAPER] / own["D-PSGD"]}
