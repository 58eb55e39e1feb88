"""The greedy algorithm on one class: which worker receives an example next, and which example.

    J = workers whose blocks are not full
    j = argmin_J f(A_j)               (rule "paper": RCD-SGD, Algorithm 1)
    j = argmin_J (|A_j| + 1/2) / C_j  (rule "fill": all blocks fill at the same rate)
    A_j <- A_j + argmax_v f(A_j + v)

Three engines find the same partition: `incremental` (machine code), `lazy` (a heap of upper bounds) and `naive` (every
gain from scratch). The last two are references to test the first one against.
"""

from __future__ import annotations

import heapq
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from .kernels import QuantizedFeatures, similarities
from .objectives import (
    Facility,
    Feature,
    GraphCut,
    HerdingObjective,
    Objective,
    Saturated,
    cut_weights,
    herding_value,
    in_similarity_units,
    positive_and_negative_parts,
    saturation_limits,
)


class GreedyConfig(NamedTuple):
    """The options of a partition that matter for one class."""

    objective: str
    fill: bool
    kernel: str
    gamma: float | None
    lam: float | str
    alpha: float
    engine: str


class Assignment(NamedTuple):
    """The examples of one class, assigned to workers."""

    owner: np.ndarray  # the worker of every example
    values: np.ndarray  # f(A_j), with the similarity 1 as the unit
    kernel: np.ndarray | None  # the similarities, where they were computed


def assign_greedily(quantized: QuantizedFeatures, caps: np.ndarray, config: GreedyConfig) -> Assignment:
    """Assign the examples of one class, caps[j] of them to worker j."""
    assert caps.sum() == len(quantized.points)
    if config.objective == "feature":
        rows = positive_and_negative_parts(quantized)
        owner, values = _feature(rows, caps, config)
        return Assignment(owner, values * np.sqrt(quantized.unit), None)
    kernel = similarities(quantized, config.kernel, config.gamma)
    if config.engine == "incremental":
        owner, values = _incremental(kernel, caps, config)
    else:
        owner, values = ENGINES[config.engine](reference_objective(kernel, caps, config), caps, config.fill)
    return Assignment(owner, in_similarity_units(values), kernel)


def reference_objective(kernel: np.ndarray, caps: np.ndarray, config: GreedyConfig) -> Objective:
    """The objective by its definition."""
    if config.objective == "facility":
        return Facility(kernel)
    if config.objective == "graph-cut":
        return GraphCut(kernel, cut_weights(config.lam, len(kernel), caps))
    if config.objective == "herding":
        return HerdingObjective(kernel)
    return Saturated(kernel, saturation_limits(kernel, caps, config.alpha))


def _feature(rows: np.ndarray, caps: np.ndarray, config: GreedyConfig) -> tuple[np.ndarray, np.ndarray]:
    if config.engine == "incremental":
        from .heap_greedy import feature_coverage

        return feature_coverage(rows, caps, config.fill)
    return ENGINES[config.engine](Feature(rows), caps, config.fill)


def _incremental(kernel: np.ndarray, caps: np.ndarray, config: GreedyConfig) -> tuple[np.ndarray, np.ndarray]:
    from . import incremental

    if config.objective == "facility":
        return incremental.facility_location(kernel, caps, config.fill)
    if config.objective == "saturated":
        return incremental.saturated_coverage(kernel, caps, config.fill, saturation_limits(kernel, caps, config.alpha))
    n = len(kernel)
    weights = cut_weights(config.lam, n, caps) if config.objective == "graph-cut" else np.zeros((len(caps), 2))
    owner, cross, own = incremental.graph_cut_or_herding(kernel, caps, config.fill, weights)
    if config.objective == "graph-cut":
        return owner, (weights[:, 1] * cross - weights[:, 0] * own) / weights[:, 1]
    total = float(kernel.sum(dtype=np.int64))
    rows = zip(cross, own, caps, strict=True)
    return owner, np.array([herding_value(c, o, total, int(cap), n) for c, o, cap in rows])


def _next_worker(objective: Objective, blocks: list[list[int]], caps: np.ndarray, fill: bool) -> int:
    open_blocks = [j for j, block in enumerate(blocks) if len(block) < caps[j]]
    if fill:
        return min(open_blocks, key=lambda j: Fraction(2 * len(blocks[j]) + 1, int(caps[j])))
    return min(open_blocks, key=lambda j: objective.value(j, blocks[j]))


def naive_greedy(objective: Objective, caps: np.ndarray, fill: bool) -> tuple[np.ndarray, np.ndarray]:
    """Compute the gain of every candidate in every step."""
    blocks: list[list[int]] = [[] for _ in caps]
    remaining = np.arange(objective.n)
    while len(remaining):
        j = _next_worker(objective, blocks, caps, fill)
        best = int(np.argmax(objective.gains(j, blocks[j], remaining)))
        blocks[j].append(int(remaining[best]))
        remaining = np.delete(remaining, best)
    return _owners(objective, blocks)


def lazy_greedy(objective: Objective, caps: np.ndarray, fill: bool) -> tuple[np.ndarray, np.ndarray]:
    """Compute only gains that may be the largest: gains fall as a block grows, so old ones are upper bounds."""
    assert objective.diminishing
    blocks: list[list[int]] = [[] for _ in caps]
    examples = np.arange(objective.n)
    initial = [objective.gains(j, [], examples) for j in range(len(caps))]
    heaps = [[(-gain, v, 0) for v, gain in enumerate(row)] for row in initial]
    for heap in heaps:
        heapq.heapify(heap)
    assigned: set[int] = set()
    while len(assigned) < objective.n:
        j = _next_worker(objective, blocks, caps, fill)
        while True:
            _, v, computed_at = heapq.heappop(heaps[j])
            if v in assigned:
                continue
            if computed_at == len(blocks[j]):
                break
            gain = objective.gains(j, blocks[j], np.array([v]))[0]
            heapq.heappush(heaps[j], (-gain, v, len(blocks[j])))
        blocks[j].append(v)
        assigned.add(v)
    return _owners(objective, blocks)


def _owners(objective: Objective, blocks: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    owner = np.empty(objective.n, dtype=np.int32)
    for j, block in enumerate(blocks):
        owner[block] = j
    return owner, np.array([objective.value(j, block) for j, block in enumerate(blocks)])


ENGINES = {"naive": naive_greedy, "lazy": lazy_greedy}
