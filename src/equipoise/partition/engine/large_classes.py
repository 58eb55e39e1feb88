"""Classes too large for a kernel of all pairs: random chunks that are dealt out one by one, or neighbours alone."""

from __future__ import annotations

import numpy as np

from ..capacity import capacities
from .greedy import Dealt, GreedyConfig
from .kernels import ONE, Grid, median_gamma, pair_similarities
from .objectives import GRAIN, in_similarities


def chunked(count: int, caps: np.ndarray, limit: int, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random parts of at most `limit` examples with their capacities, which add up to `caps`."""
    parts = -(-count // limit)
    if parts <= 1:
        return [(np.arange(count), caps)]
    members = [np.sort(part) for part in np.array_split(rng.permutation(count), parts)]
    # Quotas of the class are whole numbers, so totals that are less than one off are exact.
    cells = capacities([len(part) for part in members], caps)
    assert (cells.sum(0) == caps).all()
    return list(zip(members, cells, strict=True))


def deal_by_neighbours(grid: Grid, caps: np.ndarray, wish: GreedyConfig, neighbours: int) -> Dealt:
    """Facility location or graph cut where examples are similar to their nearest neighbours only: n k numbers."""
    from .heaps import sparse

    start, column, weight = neighbour_graph(grid, neighbours, wish.kernel, wish.gamma)
    penalty = round(float(wish.lam) * GRAIN) if wish.objective == "graph-cut" else -1
    owner, values = sparse(start, column, weight, caps, wish.fill, penalty)
    return Dealt(owner, in_similarities(values) / (GRAIN if penalty >= 0 else 1), None)


def neighbour_graph(
    grid: Grid, neighbours: int, kernel: str, gamma: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a symmetric graph: u and v are joined if one is among the k nearest of the other, and u with itself."""
    from scipy.sparse import csr_matrix
    from sklearn.neighbors import NearestNeighbors

    n = len(grid.points)
    search = NearestNeighbors(n_neighbors=min(neighbours, n - 1), algorithm="brute").fit(grid.points)
    near = search.kneighbors(return_distance=False)
    left, right = np.repeat(np.arange(n), near.shape[1]), near.reshape(-1)
    if kernel == "rbf" and gamma is None:
        gamma = median_gamma(grid)
    weight = pair_similarities(grid, left, right, kernel, gamma).astype(np.int64)
    # One more than the similarity, so that a pair without any keeps its place in the graph.
    joined = csr_matrix((weight + 1, (left, right)), shape=(n, n))
    joined = joined.maximum(joined.T)
    joined.setdiag(ONE + 1)
    joined.sort_indices()
    return joined.indptr.astype(np.int64), joined.indices.astype(np.int32), (joined.data - 1).astype(np.uint16)
