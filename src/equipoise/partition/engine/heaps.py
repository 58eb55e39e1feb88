"""Greedies that keep candidates in one heap per worker: a gain that was true once is an upper bound for ever.

The top of the heap is brought up to date; if it stays on top it joins, else it sinks. Ties go to the lowest number.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from .compiled import compiled
from .fast import next_worker


@compiled
def _before(key_a, item_a, key_b, item_b):  # pragma: no cover
    return key_a > key_b or (key_a == key_b and item_a < item_b)


@compiled
def sink(keys, items, place, size):  # pragma: no cover
    """Let the entry at `place` sink to where it belongs in the heap of the first `size` entries."""
    key, item = keys[place], items[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _before(keys[child + 1], items[child + 1], keys[child], items[child]):
            child += 1
        if not _before(keys[child], items[child], key, item):
            break
        keys[place], items[place] = keys[child], items[child]
        place = child
    keys[place], items[place] = key, item


@compiled
def heaped(keys, items):  # pragma: no cover
    for place in range(len(keys) // 2 - 1, -1, -1):
        sink(keys, items, place, len(keys))


@compiled
def sparse(start, column, weight, caps, fill, penalty):  # pragma: no cover
    """Facility location (`penalty` < 0) or graph cut with lambda = penalty / 1024, on the pairs of a graph alone.

    Row u of the symmetric graph is column[start[u]:start[u+1]] with similarities `weight`. A newcomer changes gains
    only two steps away, so all is n k^2 log n at the most.
    """
    n, workers = len(start) - 1, len(caps)
    gains = np.zeros((workers, n), dtype=np.int64)
    keys = np.empty((workers, n), dtype=np.int64)
    items = np.empty((workers, n), dtype=np.int32)
    served = np.zeros((workers, n), dtype=np.uint16)
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
        heaped(keys[j], items[j])
    sizes = np.full(workers, n)
    counts, values = np.zeros(workers, dtype=np.int64), np.zeros(workers, dtype=np.int64)
    owner = np.full(n, -1, dtype=np.int32)
    for _ in range(n):
        j = next_worker(values, counts, caps, fill)
        key, item, gain, best = keys[j], items[j], gains[j], served[j]
        while True:
            v = item[0]
            if owner[v] >= 0:
                sizes[j] -= 1
                key[0], item[0] = key[sizes[j]], item[sizes[j]]
            elif key[0] != gain[v]:
                key[0] = gain[v]
            else:
                break
            sink(key, item, 0, sizes[j])
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
def gain_of(sums, row):  # pragma: no cover
    """sum_d sqrt(sums_d + row_d) - sqrt(sums_d), always added up in the same order."""
    total = 0.0
    for d in range(len(row)):
        total += np.sqrt(sums[d] + row[d]) - np.sqrt(sums[d])
    return total


@compiled
def feature(rows, caps, fill):  # pragma: no cover
    """f(A) = sum_d sqrt(sum_{v in A} x_{v, d}), x >= 0."""
    n, workers = rows.shape[0], len(caps)
    sums = np.zeros((workers, rows.shape[1]))
    keys = np.empty((workers, n))
    items = np.empty((workers, n), dtype=np.int32)
    for v in range(n):
        keys[:, v] = gain_of(sums[0], rows[v])
        items[:, v] = v
    for j in range(workers):
        heaped(keys[j], items[j])
    sizes = np.full(workers, n)
    counts, values = np.zeros(workers, dtype=np.int64), np.zeros(workers)
    owner = np.full(n, -1, dtype=np.int32)
    fresh = np.zeros((workers, n), dtype=np.int64)  # the size of the block when the key was right
    for _ in range(n):
        j = next_worker(values, counts, caps, fill)
        key, item = keys[j], items[j]
        while True:
            v = item[0]
            if owner[v] >= 0:
                sizes[j] -= 1
                key[0], item[0] = key[sizes[j]], item[sizes[j]]
            elif fresh[j, v] != counts[j]:
                key[0] = gain_of(sums[j], rows[v])
                fresh[j, v] = counts[j]
            else:
                break
            sink(key, item, 0, sizes[j])
        owner[v] = j
        counts[j] += 1
        values[j] = 0.0
        for d in range(rows.shape[1]):
            sums[j, d] += rows[v, d]
            values[j] += np.sqrt(sums[j, d])
    return owner, values
