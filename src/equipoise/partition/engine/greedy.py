"""Dealing out one class: which worker is served next, and which example it takes.

    J = workers with room;  j = argmin_J f(A_j)              (rule "paper": RCD-SGD, Algorithm 1)
                            j = argmin_J (|A_j| + 1/2) / C_j  (rule "fill": all blocks fill at the same pace)
    A_j <- A_j + argmax_v f(A_j + v)

Three engines, one partition: `incremental` (machine code), `lazy` (a heap of upper bounds) and `naive` (every gain from
scratch). The last two are there to be checked against.
"""

from __future__ import annotations

import heapq
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from .kernels import Grid, similarities
from .objectives import (
    Facility,
    Feature,
    GraphCut,
    HerdingObjective,
    Objective,
    Saturated,
    cut_weights,
    halves,
    herding_value,
    in_similarities,
    saturation,
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


class Dealt(NamedTuple):
    owner: np.ndarray  # the worker of every example
    values: np.ndarray  # f(A_j), in units of the similarity 1
    kernel: np.ndarray | None  # for those who go on with it


def deal(grid: Grid, caps: np.ndarray, wish: GreedyConfig) -> Dealt:
    """Deal out the examples of one class, caps[j] to worker j."""
    assert caps.sum() == len(grid.points)
    if wish.objective == "feature":
        rows = halves(grid)
        owner, values = _feature(rows, caps, wish)
        return Dealt(owner, values * np.sqrt(grid.unit), None)
    kernel = similarities(grid, wish.kernel, wish.gamma)
    if wish.engine == "incremental":
        owner, values = _incremental(kernel, caps, wish)
    else:
        owner, values = ENGINES[wish.engine](reference(kernel, caps, wish), caps, wish.fill)
    return Dealt(owner, in_similarities(values), kernel)


def reference(kernel: np.ndarray, caps: np.ndarray, wish: GreedyConfig) -> Objective:
    """The objective stated from scratch."""
    if wish.objective == "facility":
        return Facility(kernel)
    if wish.objective == "graph-cut":
        return GraphCut(kernel, cut_weights(wish.lam, len(kernel), caps))
    if wish.objective == "herding":
        return HerdingObjective(kernel)
    return Saturated(kernel, saturation(kernel, caps, wish.alpha))


def _feature(rows: np.ndarray, caps: np.ndarray, wish: GreedyConfig) -> tuple[np.ndarray, np.ndarray]:
    if wish.engine == "incremental":
        from .heaps import feature

        return feature(rows, caps, wish.fill)
    return ENGINES[wish.engine](Feature(rows), caps, wish.fill)


def _incremental(kernel: np.ndarray, caps: np.ndarray, wish: GreedyConfig) -> tuple[np.ndarray, np.ndarray]:
    from . import fast

    if wish.objective == "facility":
        return fast.facility(kernel, caps, wish.fill)
    if wish.objective == "saturated":
        return fast.saturated(kernel, caps, wish.fill, saturation(kernel, caps, wish.alpha))
    n = len(kernel)
    weights = cut_weights(wish.lam, n, caps) if wish.objective == "graph-cut" else np.zeros((len(caps), 2))
    owner, cross, own = fast.linear(kernel, caps, wish.fill, weights)
    if wish.objective == "graph-cut":
        return owner, (weights[:, 1] * cross - weights[:, 0] * own) / weights[:, 1]
    everything = float(kernel.sum(dtype=np.int64))
    rows = zip(cross, own, caps, strict=True)
    return owner, np.array([herding_value(c, o, everything, int(cap), n) for c, o, cap in rows])


def _next(objective: Objective, blocks: list[list[int]], caps: np.ndarray, fill: bool) -> int:
    room = [j for j, block in enumerate(blocks) if len(block) < caps[j]]
    if fill:
        return min(room, key=lambda j: Fraction(2 * len(blocks[j]) + 1, int(caps[j])))
    return min(room, key=lambda j: objective.value(j, blocks[j]))


def naive(objective: Objective, caps: np.ndarray, fill: bool) -> tuple[np.ndarray, np.ndarray]:
    """Every gain of every candidate at every step."""
    blocks: list[list[int]] = [[] for _ in caps]
    left = np.arange(objective.n)
    while len(left):
        j = _next(objective, blocks, caps, fill)
        best = int(np.argmax(objective.gains(j, blocks[j], left)))
        blocks[j].append(int(left[best]))
        left = np.delete(left, best)
    return _owners(objective, blocks)


def lazy(objective: Objective, caps: np.ndarray, fill: bool) -> tuple[np.ndarray, np.ndarray]:
    """Only the gains that may be the largest: old ones are upper bounds, since a block only grows."""
    assert objective.falls
    blocks: list[list[int]] = [[] for _ in caps]
    everybody = np.arange(objective.n)
    first = [objective.gains(j, [], everybody) for j in range(len(caps))]
    heaps = [[(-gain, v, 0) for v, gain in enumerate(row)] for row in first]
    for heap in heaps:
        heapq.heapify(heap)
    taken: set[int] = set()
    while len(taken) < objective.n:
        j = _next(objective, blocks, caps, fill)
        while True:
            _, v, age = heapq.heappop(heaps[j])
            if v in taken:
                continue
            if age == len(blocks[j]):
                break
            gain = objective.gains(j, blocks[j], np.array([v]))[0]
            heapq.heappush(heaps[j], (-gain, v, len(blocks[j])))
        blocks[j].append(v)
        taken.add(v)
    return _owners(objective, blocks)


def _owners(objective: Objective, blocks: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    owner = np.empty(objective.n, dtype=np.int32)
    for j, block in enumerate(blocks):
        owner[block] = j
    return owner, np.array([objective.value(j, block) for j, block in enumerate(blocks)])


ENGINES = {"naive": naive, "lazy": lazy}
