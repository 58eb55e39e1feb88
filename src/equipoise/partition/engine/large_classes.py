"""Classes too large for a kernel of all pairs: random chunks one after the other, or a graph of nearest neighbours."""

from __future__ import annotations

import numpy as np

from ...core.extras import require
from ..capacity import capacities
from .greedy import Assignment, GreedyConfig
from .kernels import ONE, QuantizedFeatures, median_gamma, pair_similarities
from .objectives import LAMBDA_STEPS, in_similarity_units


def random_chunks(
    count: int, caps: np.ndarray, limit: int, rng: np.random.Generator
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random chunks of at most `limit` examples with their capacities, which add up to `caps`."""
    chunks = -(-count // limit)
    if chunks <= 1:
        return [(np.arange(count), caps)]
    members = [np.sort(part) for part in np.array_split(rng.permutation(count), chunks)]
    # Quotas of the class are integers, so totals that are less than one off are exact.
    cells = capacities([len(part) for part in members], caps)
    assert (cells.sum(0) == caps).all()
    return list(zip(members, cells, strict=True))


def assign_by_neighbours(
    quantized: QuantizedFeatures, caps: np.ndarray, config: GreedyConfig, neighbours: int
) -> Assignment:
    """Facility location or graph cut with similarities to the k nearest neighbours only: n k numbers, not n^2."""
    from .heap_greedy import sparse_greedy

    start, column, weight = neighbour_graph(quantized, neighbours, config.kernel, config.gamma)
    penalty = round(float(config.lam) * LAMBDA_STEPS) if config.objective == "graph-cut" else -1
    owner, values = sparse_greedy(start, column, weight, caps, config.fill, penalty)
    return Assignment(owner, in_similarity_units(values) / (LAMBDA_STEPS if penalty >= 0 else 1), None)


def neighbour_graph(
    quantized: QuantizedFeatures, neighbours: int, kernel: str, gamma: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a symmetric graph: u and v are linked if one is among the k nearest of the other, and u with itself."""
    purpose = "a submodular partition with neighbours"
    sklearn_neighbors = require("sklearn.neighbors", "partition", purpose)
    sparse = require("scipy.sparse", "partition", purpose)
    n = len(quantized.points)
    search = sklearn_neighbors.NearestNeighbors(n_neighbors=min(neighbours, n - 1), algorithm="brute")
    near = search.fit(quantized.points).kneighbors(return_distance=False)
    left, right = np.repeat(np.arange(n), near.shape[1]), near.reshape(-1)
    if kernel == "rbf" and gamma is None:
        gamma = median_gamma(quantized)
    weight = pair_similarities(quantized, left, right, kernel, gamma).astype(np.int64)
    # One more than the similarity, so that a pair of similarity zero is still stored.
    graph = sparse.csr_matrix((weight + 1, (left, right)), shape=(n, n))
    graph = graph.maximum(graph.T)
    graph.setdiag(ONE + 1)
    graph.sort_indices()
    return graph.indptr.astype(np.int64), graph.indices.astype(np.int32), (graph.data - 1).astype(np.uint16)
