"""From features and classes to blocks: capacities first, then every class on its own, several in parallel."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ...core.extras import require
from ...core.progress_bar import bar
from ..blocks import Division, blocks_of, members_of, remarks
from ..capacity import capacities
from ..moderate import moderate
from .greedy import GreedyConfig, assign_greedily
from .kernels import median_gamma, quantize
from .large_classes import assign_by_neighbours, random_chunks
from .swaps import improve_by_swaps


@dataclass(frozen=True)
class Limits:
    """How a class is cut down to a size that fits in memory, and how much local search follows."""

    chunk: int  # examples of a class that are assigned together
    neighbours: int  # similarities stored per example; 0: to all others
    swaps: int  # swaps proposed per example


def partition_by_class(
    features: np.ndarray, groups: np.ndarray, speeds: np.ndarray, config: GreedyConfig, limits: Limits, seed: int
) -> Division:
    """Assign the examples of every class by `config`. The result does not depend on the number of threads."""
    threadpoolctl = require("threadpoolctl", "partition", "the submodular partition")
    started = time.perf_counter()
    members = members_of(groups)
    counts = capacities([len(part) for part in members], speeds)
    owner = np.zeros(len(groups), dtype=np.int32)
    values = np.zeros(counts.shape)
    with bar(f"assigning {len(groups):,} examples to workers", len(groups)) as advance:

        def assign(label: int) -> None:
            part = members[label]
            rng = np.random.default_rng([seed, label])
            owner[part], values[label] = _assign_class(features[part], counts[label], config, limits, rng, advance)

        # One BLAS thread in each of ours: the classes are the parallelism.
        with threadpoolctl.threadpool_limits(1), ThreadPoolExecutor(_cores()) as pool:
            largest_first = sorted(range(len(members)), key=lambda label: -len(members[label]))
            list(pool.map(assign, largest_first))
    blocks = blocks_of(owner, len(speeds))
    return Division(blocks, groups, counts, values, remarks(counts, speeds), time.perf_counter() - started)


def _cores() -> int:
    """The cores that this process may use, where the operating system says."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _assign_class(
    features: np.ndarray,
    caps: np.ndarray,
    config: GreedyConfig,
    limits: Limits,
    rng: np.random.Generator,
    advance: Callable[[int], None],
) -> tuple[np.ndarray, np.ndarray]:
    """Owners and values of one class."""
    n = len(features)
    if config.gamma is None:
        features, _ = moderate(features)  # a bandwidth from the data knows no scale
    quantized = quantize(features, config.kernel)
    if config.gamma is None and config.kernel == "rbf":
        config = config._replace(gamma=median_gamma(quantized))
    owner, values = np.empty(n, dtype=np.int32), np.zeros(len(caps))
    for chunk, chunk_caps in random_chunks(n, caps, n if limits.neighbours else limits.chunk, rng):
        if limits.neighbours and n > limits.neighbours + 1:
            assignment = assign_by_neighbours(quantized, chunk_caps, config, limits.neighbours)
        else:
            assignment = assign_greedily(quantized.take(chunk) if len(chunk) < n else quantized, chunk_caps, config)
        owner[chunk] = assignment.owner
        if limits.swaps and assignment.kernel is not None:
            owner[chunk] = improve_by_swaps(assignment.kernel, assignment.owner, chunk_caps, limits.swaps, rng)
        # Herding's value is a mean over the block, the others are sums.
        values += assignment.values * (len(chunk) / n if config.objective == "herding" else 1.0)
        advance(len(chunk))
    return owner, values
