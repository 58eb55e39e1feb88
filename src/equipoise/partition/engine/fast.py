"""The greedy in machine code, one loop per objective: gains are kept for every candidate and updated, never recomputed.

All of them deal out one class: at each step `next_worker` names a block and the candidate of largest gain joins it (the
lowest number among equals). Sums are of whole numbers, so the reference engines in `greedy` find the same
partition. Cost for n examples: facility location about n^2 log n, the others n^2.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from .compiled import compiled


@compiled
def next_worker(values, counts, caps, fill):  # pragma: no cover
    """Of the blocks with room: the one of least value (the paper's rule), or of least (|A|+1/2)/C (`fill`)."""
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
def largest(gains):  # pragma: no cover
    """The first place of the largest number."""
    top = gains[0]
    for v in range(len(gains)):
        top = max(top, gains[v])
    v = 0
    while gains[v] != top:
        v += 1
    return v


@compiled
def facility(kernel, caps, fill):  # pragma: no cover
    """f(A) = sum_u max_{v in A} s(u, v). Only rows u that the newcomer serves better than before change any gain."""
    n, workers = kernel.shape[0], len(caps)
    gains = np.empty((workers, n), dtype=np.int32)
    for u in range(n):
        total = np.int32(0)
        for v in range(n):
            total += np.int32(kernel[u, v])
        gains[:, u] = total
    served = np.zeros((workers, n), dtype=np.uint16)
    counts, values = np.zeros(workers, dtype=np.int64), np.zeros(workers, dtype=np.int64)
    owner = np.empty(n, dtype=np.int32)
    for _ in range(n):
        j = next_worker(values, counts, caps, fill)
        gain, best = gains[j], served[j]
        v = largest(gain)
        owner[v] = j
        counts[j] += 1
        values[j] += gain[v]
        newcomer = kernel[v]
        for u in range(n):
            new, old = newcomer[u], best[u]
            if new > old:
                best[u] = new
                row = kernel[u]
                for w in range(n):
                    gain[w] -= np.int32(min(max(row[w], old), new)) - np.int32(old)
        # So low that no update can lift it above a gain, and far enough from the end of the range.
        gains[:, v] = -(1 << 30)
    return owner, values


@compiled
def linear(kernel, caps, fill, weights):  # pragma: no cover
    """Graph cut and herding, whose gains are linear in t(v) = sum_V s(v, .) and i(v) = sum_A s(v, .).

    Graph cut with lambda_j = weights[j, 0] / weights[j, 1]: weights[j, 1] t(v) - weights[j, 0] (2 i(v) + s(v, v)).
    Herding (weights of zero): (|A| + 1) t(v) - n i(v), which orders like t(v) / n - i(v) / (|A| + 1).
    Returns also sum_{A, V} s and sum_{A, A} s of every block.
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
        v = largest(score)
        owner[v] = j
        counts[j] += 1
        cross[j] += total[v]
        own[j] += 2.0 * known[v] + kernel[v, v]
        if weights[j, 1] != 0.0:
            values[j] = (weights[j, 1] * cross[j] - weights[j, 0] * own[j]) / weights[j, 1]
        newcomer = kernel[v]
        for w in range(n):
            known[w] += newcomer[w]
        candidate[v] = -np.inf
    return owner, cross, own


@compiled
def saturated(kernel, caps, fill, limits):  # pragma: no cover
    """f(A) = sum_u min(sum_{v in A} s(u, v), limits[j, u]). A row changes gains only while it is nearly full."""
    n, workers = kernel.shape[0], len(caps)
    room = limits.copy()
    gains = np.zeros((workers, n), dtype=np.int64)
    for j in range(workers):
        for u in range(n):
            most = room[j, u]
            for v in range(n):
                gains[j, v] += min(np.int64(kernel[u, v]), most)
    counts, values = np.zeros(workers, dtype=np.int64), np.zeros(workers, dtype=np.int64)
    owner = np.empty(n, dtype=np.int32)
    for _ in range(n):
        j = next_worker(values, counts, caps, fill)
        gain, left = gains[j], room[j]
        v = largest(gain)
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
