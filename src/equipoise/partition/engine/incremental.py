"""The greedy algorithm in machine code, one loop per objective: gains are stored and updated, never recomputed.

Each function assigns the examples of one class: in every step `next_worker` chooses a block, and the candidate with the
largest gain joins it (the lowest index among equals). All sums are of integers, so the reference engines in `greedy`
find the same partition. Cost for n examples: about n^2 log n for facility location, n^2 for the others.
"""

from __future__ import annotations

import numpy as np

from .compiled import Array, compiled


@compiled
def next_worker(values: Array, counts: Array, caps: Array, fill: bool) -> int:  # pragma: no cover
    """Of the blocks that are not full: the one of least value (the paper's rule), or of least (|A|+1/2)/C (`fill`)."""
    best = -1
    for j in range(len(caps)):
        if counts[j] >= caps[j]:
            continue
        if (
            best < 0
            or (fill and (2 * counts[j] + 1) * caps[best] < (2 * counts[best] + 1) * caps[j])
            or (not fill and values[j] < values[best])
        ):
            best = j
    return best


@compiled
def first_argmax(gains: Array) -> int:  # pragma: no cover
    """The lowest index of the largest number."""
    top = gains[0]
    for v in range(len(gains)):
        top = max(top, gains[v])
    v = 0
    while gains[v] != top:
        v += 1
    return v


@compiled
def facility_location(kernel: Array, caps: Array, fill: bool) -> tuple[Array, Array]:  # pragma: no cover
    """f(A) = sum_u max_{v in A} s(u, v). Only examples u that the new member is nearest to change any gain."""
    n, workers = kernel.shape[0], len(caps)
    gains = np.empty((workers, n), dtype=np.int32)
    for u in range(n):
        total = np.int32(0)
        for v in range(n):
            total += np.int32(kernel[u, v])
        gains[:, u] = total
    nearest = np.zeros((workers, n), dtype=np.uint16)
    counts, values = np.zeros(workers, dtype=np.int64), np.zeros(workers, dtype=np.int64)
    owner = np.empty(n, dtype=np.int32)
    for _ in range(n):
        j = next_worker(values, counts, caps, fill)
        gain, best = gains[j], nearest[j]
        v = first_argmax(gain)
        owner[v] = j
        counts[j] += 1
        values[j] += gain[v]
        added = kernel[v]
        for u in range(n):
            new, old = added[u], best[u]
            if new > old:
                best[u] = new
                row = kernel[u]
                for w in range(n):
                    gain[w] -= np.int32(min(max(row[w], old), new)) - np.int32(old)
        # Assigned: so low that no update can lift it above a gain, and far enough from the end of the int32 range.
        gains[:, v] = -(1 << 30)
    return owner, values


@compiled
def graph_cut_or_herding(
    kernel: Array, caps: Array, fill: bool, weights: Array
) -> tuple[Array, Array, Array]:  # pragma: no cover
    """Graph cut and herding, whose gains are linear in t(v) = sum_V s(v, .) and i(v) = sum_A s(v, .).

    Graph cut with lambda_j = weights[j, 0] / weights[j, 1]: weights[j, 1] t(v) - weights[j, 0] (2 i(v) + s(v, v)).
    Herding (weights of zero): (|A| + 1) t(v) - n i(v), which orders like t(v) / n - i(v) / (|A| + 1).
    Returns the owners, and sum_{A, V} s and sum_{A, A} s of every block.
    """
    n, workers = kernel.shape[0], len(caps)
    total, inside = np.zeros(n), np.zeros((workers, n))
    for u in range(n):
        for v in range(n):
            total[u] += kernel[u, v]
    candidate, score = total.copy(), np.empty(n)
    counts, values = np.zeros(workers, dtype=np.int64), np.zeros(workers)
    cross, own = np.zeros(workers), np.zeros(workers)
    owner = np.empty(n, dtype=np.int32)
    for _ in range(n):
        j = next_worker(values, counts, caps, fill)
        known = inside[j]
        if weights[j, 1] == 0.0:
            a, b, c = counts[j] + 1.0, float(n), 0.0
        else:
            a, b, c = weights[j, 1], 2.0 * weights[j, 0], weights[j, 0]
        for w in range(n):
            score[w] = a * candidate[w] - b * known[w] - c * kernel[w, w]
        v = first_argmax(score)
        owner[v] = j
        counts[j] += 1
        cross[j] += total[v]
        own[j] += 2.0 * known[v] + kernel[v, v]
        if weights[j, 1] != 0.0:
            values[j] = (weights[j, 1] * cross[j] - weights[j, 0] * own[j]) / weights[j, 1]
        added = kernel[v]
        for w in range(n):
            known[w] += added[w]
        candidate[v] = -np.inf
    return owner, cross, own


@compiled
def saturated_coverage(
    kernel: Array, caps: Array, fill: bool, limits: Array
) -> tuple[Array, Array]:  # pragma: no cover
    """f(A) = sum_u min(sum_{v in A} s(u, v), limits[j, u]). A row u changes gains only when it is nearly saturated."""
    n, workers = kernel.shape[0], len(caps)
    remaining = limits.copy()
    gains = np.zeros((workers, n), dtype=np.int64)
    for j in range(workers):
        for u in range(n):
            most = remaining[j, u]
            for v in range(n):
                gains[j, v] += min(np.int64(kernel[u, v]), most)
    counts, values = np.zeros(workers, dtype=np.int64), np.zeros(workers, dtype=np.int64)
    owner = np.empty(n, dtype=np.int32)
    for _ in range(n):
        j = next_worker(values, counts, caps, fill)
        gain, left = gains[j], remaining[j]
        v = first_argmax(gain)
        owner[v] = j
        counts[j] += 1
        values[j] += gain[v]
        for u in range(n):
            before = left[u]
            after = max(0, before - np.int64(kernel[v, u]))
            left[u] = after
            if after < 32768 and after < before:
                for w in range(n):
                    s = np.int64(kernel[u, w])
                    gain[w] -= min(s, before) - min(s, after)
        gains[:, v] = -(1 << 60)
    return owner, values
