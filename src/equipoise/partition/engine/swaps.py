"""Local search after the greedy algorithm: swap two examples of different blocks of a class where that lowers

    sum_j (1 / C_j) sum_{u, v in A_j} s(u, v)

whose minimum over blocks of these sizes is the partition with the least (size-weighted) sum of squared MMDs.
"""

from __future__ import annotations

import numpy as np

from .compiled import Array, compiled


def improve_by_swaps(
    kernel: np.ndarray, owner: np.ndarray, caps: np.ndarray, passes: int, rng: np.random.Generator
) -> np.ndarray:
    """The owners after `passes` random proposals per example."""
    n = len(owner)
    improved: np.ndarray = owner.copy()
    if n > 1 and (caps > 0).sum() > 1:
        for _ in range(passes):
            _try_swaps(kernel, improved, caps, rng.integers(n, size=n), rng.integers(n, size=n))
    return improved


@compiled
def _try_swaps(kernel: Array, owner: Array, caps: Array, left: Array, right: Array) -> None:  # pragma: no cover
    n, workers = len(owner), len(caps)
    inside = np.zeros((workers, n), dtype=np.int64)  # sum of similarities to each block
    for u in range(n):
        row, total = kernel[u], inside[owner[u]]
        for v in range(n):
            total[v] += row[v]
    for i in range(len(left)):
        a, b = left[i], right[i]
        j, k = owner[a], owner[b]
        if j == k:
            continue
        s, both = np.int64(kernel[a, b]), np.int64(kernel[a, a]) + np.int64(kernel[b, b])
        # b for a in block j, a for b in block k.
        first = 2 * (inside[j, b] - inside[j, a] - s) + both
        second = 2 * (inside[k, a] - inside[k, b] - s) + both
        if first / caps[j] + second / caps[k] < 0.0:
            owner[a], owner[b] = k, j
            for v in range(n):
                change = np.int64(kernel[b, v]) - np.int64(kernel[a, v])
                inside[j, v] += change
                inside[k, v] -= change
