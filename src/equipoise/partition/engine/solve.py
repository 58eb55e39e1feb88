"""From features and groups to blocks: capacities, then every class dealt out on its own, several at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ...core.progress_bar import bar
from ..blocks import Division, blocks_of, members_of, remarks
from ..capacity import capacities
from .greedy import GreedyConfig, deal
from .kernels import median_gamma, on_grid
from .large_classes import chunked, deal_by_neighbours
from .local_search import polish


@dataclass(frozen=True)
class Limits:
    chunk: int
    neighbours: int
    polish: int


def optimised(
    features: np.ndarray, groups: np.ndarray, speeds: np.ndarray, wish: GreedyConfig, limits: Limits, seed: int
) -> Division:
    """Deal out every class by `wish`. Results do not depend on the number of threads."""
    from threadpoolctl import threadpool_limits

    started = time.perf_counter()
    members = members_of(groups)
    counts = capacities([len(part) for part in members], speeds)
    owner = np.zeros(len(groups), dtype=np.int32)
    values = np.zeros(counts.shape)
    with bar(f"dealing out {len(groups):,} examples", len(groups)) as advance:

        def one(label: int) -> None:
            part = members[label]
            rng = np.random.default_rng([seed, label])
            owner[part], values[label] = _class(features[part], counts[label], wish, limits, rng, advance)

        # One thread of BLAS in each of ours: the classes are the parallelism.
        with threadpool_limits(1), ThreadPoolExecutor(_cores()) as pool:
            largest_first = sorted(range(len(members)), key=lambda label: -len(members[label]))
            list(pool.map(one, largest_first))
    blocks = blocks_of(owner, len(speeds))
    return Division(blocks, groups, counts, values, remarks(counts, speeds), time.perf_counter() - started)


def _cores() -> int:
    """As many as this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _class(
    features: np.ndarray,
    caps: np.ndarray,
    wish: GreedyConfig,
    limits: Limits,
    rng: np.random.Generator,
    advance: Callable[[int], None],
) -> tuple[np.ndarray, np.ndarray]:
    """Owners and values of one class."""
    n = len(features)
    grid = on_grid(features, wish.kernel)
    if wish.gamma is None and wish.kernel == "rbf":
        wish = wish._replace(gamma=median_gamma(grid))
    owner, values = np.empty(n, dtype=np.int32), np.zeros(len(caps))
    for part, room in chunked(n, caps, n if limits.neighbours else limits.chunk, rng):
        if limits.neighbours and n > limits.neighbours + 1:
            dealt = deal_by_neighbours(grid, room, wish, limits.neighbours)
        else:
            dealt = deal(grid.take(part) if len(part) < n else grid, room, wish)
        owner[part] = dealt.owner
        if limits.polish and dealt.kernel is not None:
            owner[part] = polish(dealt.kernel, dealt.owner, room, limits.polish, rng)
        # Herding's value is a mean over the block, the others are sums.
        values += dealt.values * (len(part) / n if wish.objective == "herding" else 1.0)
        advance(len(part))
    return owner, values
