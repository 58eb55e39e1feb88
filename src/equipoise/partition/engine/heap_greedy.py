"""Greedy algorithms with one heap of candidates per worker: gains only fall, so an old gain is an upper bound.

The gain at the top of the heap is recomputed. If the candidate stays at the top it joins the block, otherwise it is
sifted down. Ties go to the lowest index.
"""

from __future__ import annotations

import numpy as np

from .compiled import Array, compiled
from .incremental import next_worker


@compiled
def _ranks_above(key_a: float, item_a: int, key_b: float, item_b: int) -> bool:  # pragma: no cover
    return key_a > key_b or (key_a == key_b and item_a < item_b)


@compiled
def sift_down(keys: Array, items: Array, place: int, size: int) -> None:  # pragma: no cover
    """Move the entry at `place` down to its position in the heap of the first `size` entries."""
    key, item = keys[place], items[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _ranks_above(keys[child + 1], items[child + 1], keys[child], items[child]):
            child += 1
        if not _ranks_above(keys[child], items[child], key, item):
            break
        keys[place], items[place] = keys[child], items[child]
        place = child
    keys[place], items[place] = key, item


@compiled
def heapify(keys: Array, items: Array) -> None:  # pragma: no cover
    for place in range(len(keys) // 2 - 1, -1, -1):
        sift_down(keys, items, place, len(keys))


@compiled
def sparse_greedy(
    start: Array, column: Array, weight: Array, caps: Array, fill: bool, penalty: int
) -> tuple[Array, Array]:  # pragma: no cover
    """Facility location (`penalty` < 0) or graph cut with lambda = penalty / 1024, over the pairs of a sparse graph.

    Row u of the symmetric graph is column[start[u]:start[u+1]] with similarities `weight`. A new member changes gains
    at most two links away, so the cost is at most n k^2 log n.
    """
    n, workers = len(start) - 1, len(caps)
    gains = np.zeros((workers, n), dtype=np.int64)
    keys = np.empty((workers, n), dtype=np.int64)
    items = np.empty((workers, n), dtype=np.int32)
    nearest = np.zeros((workers, n), dtype=np.uint16)
    for u in range(n):
        total, own = np.int64(0), np.int64(0)
        for e in range(start[u], start[u + 1]):
            total += weight[e]
            if column[e] == u:
                own = np.int64(weight[e])
        gains[:, u] = total if penalty < 0 else 1024 * total - penalty * own
    for j in range(workers):
        keys[j] = gains[j]
        items[j] = np.arange(n)
        heapify(keys[j], items[j])
    sizes = np.full(workers, n)
    counts, values = np.zeros(workers, dtype=np.int64), np.zeros(workers, dtype=np.int64)
    owner = np.full(n, -1, dtype=np.int32)
    for _ in range(n):
        j = next_worker(values, counts, caps, fill)
        key, item, gain, best = keys[j], items[j], gains[j], nearest[j]
        while True:
            v = item[0]
            if owner[v] >= 0:
                sizes[j] -= 1
                key[0], item[0] = key[sizes[j]], item[sizes[j]]
            elif key[0] != gain[v]:
                key[0] = gain[v]
            else:
                break
            sift_down(key, item, 0, sizes[j])
        owner[v] = j
        counts[j] += 1
        values[j] += gain[v]
        for e in range(start[v], start[v + 1]):
            u = column[e]
            new = weight[e]
            if penalty >= 0:
                gain[u] -= 2 * penalty * np.int64(new)
            elif new > best[u]:
                old = best[u]
                best[u] = new
                for d in range(start[u], start[u + 1]):
                    gain[column[d]] -= np.int64(min(max(weight[d], old), new)) - np.int64(old)
    return owner, values


@compiled
def feature_gain(sums: Array, row: Array) -> float:  # pragma: no cover
    """sum_d sqrt(sums_d + row_d) - sqrt(sums_d), always added up in the same order."""
    total = 0.0
    for d in range(len(row)):
        total += np.sqrt(sums[d] + row[d]) - np.sqrt(sums[d])
    return total


@compiled
def feature_coverage(rows: Array, caps: Array, fill: bool) -> tuple[Array, Array]:  # pragma: no cover
    """f(A) = sum_d sqrt(sum_{v in A} x_{v, d}), x >= 0."""
    n, workers = rows.shape[0], len(caps)
    sums = np.zeros((workers, rows.shape[1]))
    keys = np.empty((workers, n))
    items = np.empty((workers, n), dtype=np.int32)
    for v in range(n):
        keys[:, v] = feature_gain(sums[0], rows[v])
        items[:, v] = v
    for j in range(workers):
        heapify(keys[j], items[j])
    sizes = np.full(workers, n)
    counts, values = np.zeros(workers, dtype=np.int64), np.zeros(workers)
    owner = np.full(n, -1, dtype=np.int32)
    computed_at = np.zeros((workers, n), dtype=np.int64)  # size of the block for which the key was computed
    for _ in range(n):
        j = next_worker(values, counts, caps, fill)
        key, item = keys[j], items[j]
        while True:
            v = item[0]
            if owner[v] >= 0:
                sizes[j] -= 1
                key[0], item[0] = key[sizes[j]], item[sizes[j]]
            elif computed_at[j, v] != counts[j]:
                key[0] = feature_gain(sums[j], rows[v])
                computed_at[j, v] = counts[j]
            else:
                break
            sift_down(key, item, 0, sizes[j])
        owner[v] = j
        counts[j] += 1
        values[j] = 0.0
        for d in range(rows.shape[1]):
            sums[j, d] += rows[v, d]
            values[j] += np.sqrt(sums[j, d])
    return owner, values
