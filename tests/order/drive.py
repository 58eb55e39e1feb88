"""Orders on fixed vectors: no model, no gradients, only the mathematics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import equipoise as eq
from equipoise.comm.current import current_comm
from equipoise.core.context import Context, WorkerInfo
from equipoise.order.balanced_order import BalancedOrder
from equipoise.signal import Rows


def sphere(n: int, d: int, seed: int = 0) -> torch.Tensor:
    """Unit vectors in all directions, in double precision."""
    drawn = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return drawn / drawn.norm(dim=1, keepdim=True)


def bound(order: Any, examples: int, comm: Any = None, seed: int = 0) -> Any:
    comm = comm or current_comm()
    return order.bind(Context(comm, worker=WorkerInfo(comm.rank, comm.size, seed, examples)))


def visit(order: Any, vectors: torch.Tensor, epoch: int, batch: int, upto: int | None = None) -> np.ndarray:
    """One epoch: the order that was visited."""
    positions = order.epoch(epoch)
    for start in range(0, len(positions) if upto is None else upto, batch):
        part = positions[start : start + batch]
        order.observe(part, Rows(vectors[torch.from_numpy(part)], [1] * len(part)))
    return positions


def largest_prefix(rows: torch.Tensor) -> float:
    """H of an order: the largest norm of a prefix of the centred vectors."""
    return float((rows - rows.mean(0)).cumsum(0).norm(dim=1).max())


def floor(order: BalancedOrder, vectors: torch.Tensor, rounds: int, batch: int = 256, seed: int = 0) -> float:
    """H after so many rounds on one worker."""
    balanced = bound(order, len(vectors), seed=seed)
    for epoch in range(rounds):
        visit(balanced, vectors, epoch, batch)
    return largest_prefix(vectors[torch.from_numpy(balanced.epoch(rounds))])


def parallel_floor(
    order: Callable[[], BalancedOrder], vectors: torch.Tensor, workers: int, rounds: int, batch: int
) -> float:
    """H of the sum over workers, each of which holds an equal slice, after so many rounds."""
    parts = vectors.chunk(workers)

    def loop(comm: Any) -> torch.Tensor:
        mine = parts[comm.rank]
        balanced = bound(order(), len(mine), comm)
        for epoch in range(rounds):
            visit(balanced, mine, epoch, batch)
        return mine[torch.from_numpy(balanced.epoch(rounds))]

    rows = eq.spawn(loop, workers, virtual=True)
    return largest_prefix(torch.stack(rows).sum(0))


def least_squares(order: Any, n: int, seed: int, epochs: int = 60) -> float:
    """Squared distance to the optimum: d = 10, one example a step, step 1/n, as in the specification's table."""
    generator = np.random.default_rng(seed)
    a, noise = generator.standard_normal((n, 10)), generator.standard_normal(n)
    y = a @ generator.standard_normal(10) + noise
    best = np.linalg.lstsq(a, y, rcond=None)[0]
    x, balanced = np.zeros(10), bound(order, n, seed=seed)
    for epoch in range(epochs):
        for i in balanced.epoch(epoch):
            g = (a[i] @ x - y[i]) * a[i]
            if balanced.watches:
                balanced.observe(np.array([i]), Rows(torch.from_numpy(g[None]), [1]))
            x = x - g / n
    return float(((x - best) ** 2).sum())
