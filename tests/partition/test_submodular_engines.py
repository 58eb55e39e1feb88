"""The three engines find one partition; what the compiled loops update equals what a recomputation gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from equipoise.partition.engine.greedy import Assignment, GreedyConfig, assign_greedily, reference_objective
from equipoise.partition.engine.kernels import ONE, quantize, similarities
from equipoise.partition.engine.large_classes import assign_by_neighbours, neighbour_graph, random_chunks
from equipoise.partition.engine.swaps import improve_by_swaps

CAPS = [(20, 20, 20), (6, 12, 24, 48), (0, 11, 22), (40,), (1, 1, 1)]
OBJECTIVES = [
    ("facility", 1.0),
    ("graph-cut", 1.0),
    ("graph-cut", 0.3),
    ("graph-cut", "size-aware"),
    ("saturated", 1.0),
    ("feature", 1.0),
    ("herding", 1.0),
]


def points(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, n])
    x = rng.standard_normal((n, 4))
    x[n // 2 :: 7] = x[n // 2]  # duplicates: ties everywhere
    return x


@pytest.mark.parametrize(("objective", "lam"), OBJECTIVES)
def test_engines_agree(objective: str, lam: float | str) -> None:
    fills = (True,) if objective == "herding" else (False, True)  # herding has no value to compare blocks by
    for caps, kernel, fill in itertools.product(CAPS, ("rbf", "cosine"), fills):
        quantized = quantize(points(sum(caps)), kernel)
        config = GreedyConfig(objective, fill, kernel, None, lam, 0.7, "incremental")
        fast, slow = (
            assign_greedily(quantized, np.array(caps), config._replace(engine=e)) for e in ("incremental", "naive")
        )
        assert (fast.owner == slow.owner).all(), caps
        assert np.bincount(fast.owner, minlength=len(caps)).tolist() == list(caps)
        used = np.array(caps) > 0
        assert fast.values[used] == pytest.approx(slow.values[used], rel=1e-9)
        if objective != "herding":
            assert (
                assign_greedily(quantized, np.array(caps), config._replace(engine="lazy")).owner == slow.owner
            ).all(), caps


def test_values_are_those_of_the_blocks() -> None:
    quantized, caps = quantize(points(300)), np.array([100, 50, 150])
    config = GreedyConfig("facility", False, "rbf", None, 1.0, 1.0, "incremental")
    assignment = assign_greedily(quantized, caps, config)
    objective = reference_objective(similarities(quantized), caps, config)
    again = [objective.value(j, np.flatnonzero(assignment.owner == j).tolist()) / ONE for j in range(3)]
    assert assignment.values.tolist() == again  # integers over a power of two: exact


def test_all_neighbours_is_the_dense_kernel() -> None:
    """With k = n - 1 the graph has every pair, so the greedy algorithm must find the same partition."""
    for n, caps in ((50, (25, 25)), (90, (30, 10, 50))):
        quantized = quantize(np.random.default_rng(n).standard_normal((n, 6)))
        for objective, lam in (("facility", 1.0), ("graph-cut", 0.5)):
            for fill in (False, True):
                config = GreedyConfig(objective, fill, "rbf", None, lam, 1.0, "incremental")
                dense = assign_greedily(quantized, np.array(caps), config)
                sparse: Assignment = assign_by_neighbours(quantized, np.array(caps), config, n - 1)
                assert (sparse.owner == dense.owner).all()
                assert sparse.values == pytest.approx(dense.values, rel=1e-12)


def test_neighbour_graph_is_symmetric_and_holds_the_nearest() -> None:
    x = np.random.default_rng(5).standard_normal((80, 3))
    quantized = quantize(x)
    start, column, weight = neighbour_graph(quantized, 4, "rbf", None)
    dense = similarities(quantized)
    pairs = {(u, int(v)) for u in range(80) for v in column[start[u] : start[u + 1]]}
    assert all((v, u) in pairs for u, v in pairs)
    apart = ((x[:, None] - x[None]) ** 2).sum(-1)
    for u in range(80):
        assert {(u, int(v)) for v in np.argsort(apart[u])[:5]} <= pairs  # itself and the four nearest
        assert (weight[start[u] : start[u + 1]] == dense[u, column[start[u] : start[u + 1]]]).all()


def test_chunks_cover_the_class_and_keep_its_capacities() -> None:
    rng = np.random.default_rng(0)
    caps = np.array([123, 456, 421])
    parts = random_chunks(1000, caps, 130, rng)
    assert len(parts) == 8
    assert (np.sort(np.concatenate([part for part, _ in parts])) == np.arange(1000)).all()
    assert all(len(part) <= 130 and part_caps.sum() == len(part) for part, part_caps in parts)
    assert (sum(part_caps for _, part_caps in parts) == caps).all()


def test_swaps_lower_the_sum_of_squared_mmds_and_keep_sizes() -> None:
    quantized, caps = quantize(points(200)), np.array([40, 60, 100])
    kernel = similarities(quantized).astype(np.uint16)
    rng = np.random.default_rng(1)
    owner = rng.permutation(np.repeat(np.arange(3), caps)).astype(np.int32)

    def objective(owner: np.ndarray) -> float:
        blocks = [np.flatnonzero(owner == j) for j in range(3)]
        return sum(kernel[np.ix_(b, b)].sum(dtype=np.int64) / len(b) for b in blocks)

    once = improve_by_swaps(kernel, owner, caps, 1, rng)
    more = improve_by_swaps(kernel, owner, caps, 20, rng)
    assert objective(more) < objective(once) < objective(owner)
    assert np.bincount(more).tolist() == caps.tolist()
    assert owner.tolist() != more.tolist()
