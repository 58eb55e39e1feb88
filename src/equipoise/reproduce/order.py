"""CD-GraB: orders balanced jointly over all workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import equipoise as eq

from ..core.context import Context, describe
from ..core.progress_bar import bar, tracked
from ..order import Order
from ..signal import Rows
from .joined import Joined
from .runs import LOSS, Images, images, mean

DEFAULT = "as by default here"
# As in the paper: every epoch, by exact gradients.
PUBLISHED: dict[str, Any] = {
    "CD-GraB": partial(eq.order.CDGraB, signal="exact"),
    "ID-GraB": partial(eq.order.IDGraB, signal="exact"),
}


def herding(workers: tuple[int, int], vectors: int, dimension: int, rounds: int) -> dict[str, float]:
    """The largest norm of a prefix sum over workers, on fixed unit vectors."""
    bounds: dict[str, dict[int, float]] = {}
    orders = {**PUBLISHED, "random": eq.order.Reshuffle}
    drawn = torch.randn(vectors, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn /= drawn.norm(dim=1, keepdim=True)
    for name, order in tracked("orders", orders.items()):
        bounds[name] = {w: _bound(order, drawn.chunk(w), rounds) for w in workers}
    few, many = workers
    grown = {f"{name}, bound at {many} workers / at {few}": row[many] / row[few] for name, row in bounds.items()}
    return grown | {
        f"CD-GraB, bound / a random order's, {many} workers": bounds["CD-GraB"][many] / bounds["random"][many]
    }


def _bound(order: Any, blocks: tuple[torch.Tensor, ...], rounds: int) -> float:
    def loop(comm: Any) -> torch.Tensor:
        mine = blocks[comm.rank]
        own = order().bind(Context(comm, worker=describe(comm, sizes=[len(block) for block in blocks])))
        for epoch in range(rounds if own.watches else 0):
            indices = own.epoch(epoch)
            for part in np.split(indices, range(16, len(indices), 16)):
                own.observe(part, Rows(mine[torch.from_numpy(part)], [1] * len(part)))
        visited: torch.Tensor = mine[torch.from_numpy(own.epoch(rounds))]
        return visited

    total = torch.stack(eq.spawn(loop, len(blocks), virtual=True)).sum(0)
    return float((total - total.mean(0)).cumsum(0).norm(dim=1).max())


def convex(workers: int, examples: int, epochs: int, seeds: int) -> dict[str, float]:
    """Least squares, one example per step and worker: the gap to the optimum with a constant learning rate."""
    orders = {"D-RR": eq.order.Reshuffle, **PUBLISHED}
    gaps = {
        name: mean(_gap(order, workers, examples, epochs, s) for s in range(seeds))
        for name, order in tracked("orders", orders.items())
    }
    return {f"gap of the loss, {name} / D-RR": gaps[name] / gaps["D-RR"] for name in ("CD-GraB", "ID-GraB")}


def _gap(order: Any, workers: int, examples: int, epochs: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal((examples, 10)))
    y = x @ torch.from_numpy(rng.standard_normal((10, 1))) + torch.from_numpy(rng.standard_normal((examples, 1)))
    best = torch.linalg.lstsq(x, y).solution
    run = eq.train(
        lambda: nn.Linear(10, 1, bias=False, dtype=torch.float64),
        nn.MSELoss(),
        (x, y),
        test=(x[:1], y[:1]),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.5 * workers / examples),
        workers=workers,
        epochs=epochs,
        order=order(),
        batch=1,
        seed=seed,
        evaluate_every=10**6,
    )
    with torch.no_grad():
        return float(((run.model(x) - y) ** 2).mean() - ((x @ best - y) ** 2).mean())


def network(workers: int, epochs: int, lr: float, seeds: int, independent: bool = True, **of: Any) -> dict[str, float]:
    """LeNet, one image per step and worker: the final training loss. independent: also of ID-GraB."""
    data = images(**of)
    orders = {"D-RR": eq.order.Reshuffle, **PUBLISHED, f"CD-GraB {DEFAULT}": eq.order.CDGraB}
    if not independent:
        del orders["ID-GraB"]
    with bar("epochs", len(orders) * seeds * epochs) as advance:
        losses = {
            name: mean(_network_loss(data, order(), workers, epochs, lr, seed, advance) for seed in range(seeds))
            for name, order in orders.items()
        }
    ratios = {f"training loss, {name} / D-RR": loss / losses["D-RR"] for name, loss in losses.items() if name != "D-RR"}
    return ratios | {f"training loss, {name}": loss for name, loss in losses.items()}


def _network_loss(
    data: Images, order: Order, workers: int, epochs: int, lr: float, seed: int, advance: Callable[[int], None]
) -> float:
    last: list[nn.Module] = []

    def after_epoch(model: nn.Module, learned: bool) -> None:
        last.append(model)
        advance(1)

    joined = Joined(
        partial(data.make, "lenet", seed), LOSS, data.data.train, partial(torch.optim.SGD, lr=lr, momentum=0.9), workers
    )
    joined.train(order, epochs, seed, after_epoch)
    return data.training_loss(last[-1])
