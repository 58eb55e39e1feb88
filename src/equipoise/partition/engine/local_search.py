"""Swaps inside a class that bring every block closer to it: exchange two examples of different blocks where that lowers

    sum_j (1 / C_j) sum_{u, v in A_j} s(u, v)

whose minimum over blocks of these sizes is the partition with the least (size-weighted) sum of squared MMDs.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from .compiled import compiled


def polish(
    kernel: np.ndarray, owner: np.ndarray, caps: np.ndarray, passes: int, rng: np.random.Generator
) -> np.ndarray:
    """The owners after `passes` random proposals per example."""
    n = len(owner)
    changed = owner.copy()
    if n > 1 and (caps > 0).sum() > 1:
        for _ in range(passes):
            _swaps(kernel, changed, caps, rng.integers(n, size=n), rng.integers(n, size=n))
    return changed


@compiled
def _swaps(kernel, owner, caps, left, right):  # pragma: no cover
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
