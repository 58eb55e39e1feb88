"""GRAWA: averages weighted by inverse gradient norms."""

from __future__ import annotations

import itertools
import math
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import nn

import equipoise as eq

from ..core.progress_bar import tracked
from ..flatness import Surface, largest_eigenvalue, trace
from ..simulate.cluster import Link
from .runs import LOSS, images, mean

SHARP, FLAT = 20.0, 1.0  # curvature at the bottom: about 21 and 2.4


def weights(workers: int, steps: int) -> dict[str, float]:
    """The weight of a worker in the centre times its gradient norm, which must be the same for all workers."""
    x, y = torch.randn(64 * workers, 6, generator=torch.Generator().manual_seed(0)), torch.arange(64 * workers) % 3

    def loop(comm: Any) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mine = slice(64 * comm.rank, 64 * (comm.rank + 1))
        with eq.attach(model, optimizer, sync=eq.sync.LGRAWA(source="last", smoothing=0.0), period=4) as attached:
            for _ in range(steps):
                optimizer.zero_grad()
                LOSS(model(x[mine] * (1 + comm.rank)), y[mine]).backward()
                norms = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).double()
                optimizer.step()
            sync: Any = attached.sync
            product: torch.Tensor = sync.own_weights * norms
            return product

    products = torch.stack(eq.spawn(loop, workers, virtual=True))  # worker by layer
    spread = (products.amax(0) - products.amin(0)) / products.mean(0)
    return {"spread of weight x norm over workers, largest of all layers": float(spread.max())}


def valleys(workers: int, steps: int, seeds: int) -> dict[str, float]:
    """Half of the workers start in a sharp valley, half in a flat one of equal depth: how often the flat one wins."""
    methods = {
        "MGRAWA": (eq.sync.MGRAWA(pull=0.8), 32),
        "EASGD": (eq.sync.EASGD(pull=min(1.0, 0.1 * workers)), 4),
        "equal weights, same pull": (eq.sync.MGRAWA(pull=0.8, exponent=0.0), 32),
        "LSGD": (eq.sync.LSGD(pull=0.1, prox=0.1), 4),
    }
    return {
        f"runs that end in the flat valley, {name}": mean(
            _ends_flat(sync, period, workers, steps, seed) for seed in range(seeds)
        )
        for name, (sync, period) in tracked("methods", methods.items())
    }


def _ends_flat(sync: Any, period: int, workers: int, steps: int, seed: int) -> float:
    """Whether the mean model ends in the flat valley.

    f(x) = h(x + 1; SHARP) left of 0, h(x - 1; FLAT) right of it, with
    h(d; a) = (sqrt(1 + a^2 d^2) - 1) / (sqrt(1 + a^2) - 1).
    Both valleys are 0 at the bottom and 1 at the ridge, with walls of about the same slope. Each batch shifts f.
    """

    def loop(comm: Any) -> float:
        generator = torch.Generator().manual_seed(1000 * seed + comm.rank)
        model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        with eq.attach(model, optimizer, sync=sync, period=period) as attached:
            with torch.no_grad():
                model.weight.fill_(-1.0 if comm.rank % 2 else 1.0)
            for _ in range(steps):
                x = float(model.weight.detach()) + 0.15 * float(torch.randn((), generator=generator))
                a, d = (SHARP, x + 1) if x < 0 else (FLAT, x - 1)
                root, scale = math.sqrt(1 + a * a * d * d), math.sqrt(1 + a * a) - 1
                model.weight.grad = torch.full_like(model.weight, a * a * d / root / scale)
                attached.loss = (root - 1) / scale
                optimizer.step()
            with comm.uncounted():
                return float(comm.mean(model.weight.detach().reshape(1).clone()))

    mean_model = eq.spawn(loop, workers, virtual=True)[0]
    return float(mean_model > 0.5)  # inside the flat valley, not between the two


def budget(seconds: float, seeds: int, model: str, lr: float, **of: Any) -> dict[str, float]:
    """Equal simulated time on four workers with slow links, with the periods and pulls of the authors.

    As in their code, the mean model is tested; for EASGD, the centre.
    """
    ends = _ends(seconds, seeds, model, lr, tuple(sorted(of.items())))
    error = {name: mean(end.error for end in row) for name, row in ends.items()}
    rounds = {name: mean(end.rounds for end in row) for name, row in ends.items()}
    rival = min(error["EASGD"], error["LSGD"])
    return {
        "test error, LGRAWA / better of EASGD, LSGD": error["LGRAWA"] / rival,
        "test error, MGRAWA / better of EASGD, LSGD": error["MGRAWA"] / rival,
        "rounds, LGRAWA / EASGD": rounds["LGRAWA"] / rounds["EASGD"],
    } | {f"test error, {name}, %": 100 * value for name, value in error.items()}


def flatness(seconds: float, seeds: int, model: str, lr: float, **of: Any) -> dict[str, float]:
    """Curvature of the training loss at the mean models of the same runs."""
    ends = _ends(seconds, seeds, model, lr, tuple(sorted(of.items())))
    names = ("EASGD", "LGRAWA", "MGRAWA", "all-reduce")
    curvatures = {"trace": partial(trace, probes=10), "largest eigenvalue": partial(largest_eigenvalue, most=20)}
    quantities: dict[str, float] = {}
    for quantity, measure in curvatures.items():
        value = {name: mean(measure(end.surface).value for end in ends[name]) for name in names}
        for name in names[1:]:
            quantities[f"{quantity} of the Hessian, {name} / EASGD"] = value[name] / value["EASGD"]
    return quantities


class _End(NamedTuple):
    error: float
    rounds: float
    surface: Surface


@cache
def _ends(seconds: float, seeds: int, model: str, lr: float, of: tuple[Any, ...]) -> dict[str, list[_End]]:
    data = images(**dict(of))
    methods = {
        "LGRAWA": (eq.sync.LGRAWA(pull=0.5, prox=0.01), 32),
        "MGRAWA": (eq.sync.MGRAWA(pull=0.5, prox=0.01), 32),
        "EASGD": (eq.sync.EASGD(pull=0.4), 4),  # pull / workers is the authors' 0.1 per worker
        "LSGD": (eq.sync.LSGD(pull=0.1, prox=0.1), 4),
        "all-reduce": (eq.sync.AllReduce(), 1),
    }
    ends: dict[str, list[_End]] = {name: [] for name in methods}
    for (name, (sync, period)), seed in tracked("runs", [*itertools.product(methods.items(), range(seeds))]):
        run = data.train_with(
            sync=sync,
            period=period,
            workers=4,
            budget=seconds,
            cluster=eq.Cluster([1000.0] * 4, Link(20e6, 1e-3)),
            batch=16,
            lr=lr,
            momentum=0.9,
            nesterov=True,
            model=model,
            seed=seed,
        )
        models, tested = run.result["models"], "centre" if name == "EASGD" else "mean"
        surface = Surface(run.model, LOSS, data.data.train, examples=512)
        ends[name].append(_End(1 - models[tested]["accuracy"], run.result["rounds"], surface))
    return ends
