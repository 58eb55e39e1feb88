"""Measures the links between the running workers, for `equipoise cluster measure`."""

from __future__ import annotations

import math
import statistics
import time
from typing import NamedTuple

import torch

from ..core.spread import spread
from ..simulate.cluster import PAYLOAD, Link
from .base import Comm, barrier

_PINGS = 20
_TRIES = 3  # of each size, until messages are long enough
_LONG = 0.2  # seconds: shorter messages do not give a reliable bandwidth
_MOST = 1 << 26  # bytes of one message at most
_SHORT = 1e-4  # seconds of latency that make no difference
_SIMILAR = 1.25  # links within this factor of each other count as equal


class Sample(NamedTuple):
    bandwidth: float  # infinite where the message took no longer than an empty one
    latency: float


class MeasuredLink(NamedTuple):
    link: Link
    spread: float  # between the quartiles of the repetitions, relative to the median


def measure_links(comm: Comm, repetitions: int = 7) -> dict[tuple[int, int], MeasuredLink]:
    """The link of every pair of ranks, the same on all workers; disjoint pairs are measured at the same time.

    Every pair has had its turn before one has the next, so that the spread contains how the load of a machine changes.
    """
    sizes: dict[tuple[int, int], int] = {}
    samples: dict[tuple[int, int], list[Sample]] = {}
    with comm.uncounted():
        for pairs in round_robin_pairs(comm.size) * repetitions:
            barrier(comm)
            for pair in pairs:
                if comm.rank in pair:
                    peer = pair[0] + pair[1] - comm.rank
                    if pair not in sizes:
                        sizes[pair] = _enough_bytes(comm, peer)
                    samples.setdefault(pair, []).append(_measure(comm, peer, sizes[pair]))
        rows = comm.gather_objects({pair: each for pair, each in samples.items() if comm.rank == pair[0]})
    return {pair: median_link(each) for row in rows for pair, each in sorted(row.items())}


def median_link(samples: list[Sample]) -> MeasuredLink:
    bandwidths, latencies = [s.bandwidth for s in samples], [s.latency + _SHORT for s in samples]
    link = Link(_rounded(statistics.median(bandwidths)), _rounded(statistics.median(s.latency for s in samples)))
    apart = max(spread(bandwidths), spread(latencies))
    return MeasuredLink(link, apart if math.isfinite(apart) else math.inf)  # one of many without a time says nothing


def round_robin_pairs(size: int) -> list[list[tuple[int, int]]]:
    """Rounds of disjoint pairs that together contain every pair of ranks once (the circle method)."""
    circle = [*range(size), *([-1] if size % 2 else [])]  # -1: its partner pauses in this round
    rounds = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = [(min(a, b), max(a, b)) for a, b in zip(circle[:half], reversed(circle[half:]), strict=True)]
        rounds.append([pair for pair in pairs if pair[0] >= 0])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def _enough_bytes(comm: Comm, peer: int) -> int:
    """Of a message that takes long enough. Both ends decide by the same number: the longer of their two times.

    The shortest of a few: a busy machine may make any one message wait.
    """
    bytes = 1 << 16
    while bytes < _MOST:
        if min(_longest(comm, peer, _time_exchange(comm, peer, bytes // 4)) for _ in range(_TRIES)) >= _LONG:
            break
        bytes *= 4
    return bytes


def _measure(comm: Comm, peer: int, bytes: int) -> Sample:
    latency = statistics.median(_time_exchange(comm, peer, 1) for _ in range(_PINGS))
    latency, seconds = _longest(comm, peer, latency), _longest(comm, peer, _time_exchange(comm, peer, bytes // 4))
    return Sample(8.0 * bytes / (seconds - latency) / PAYLOAD if seconds > latency else math.inf, latency)


def _time_exchange(comm: Comm, peer: int, elements: int) -> float:
    """Seconds of one message in each direction at the same time."""
    outgoing, incoming = torch.zeros(elements), torch.empty(elements)
    _longest(comm, peer, 0.0)  # a barrier for the two
    started = time.perf_counter()
    comm.exchange({peer: outgoing}, {peer: incoming}).wait()
    return time.perf_counter() - started


def _longest(comm: Comm, peer: int, seconds: float) -> float:
    """The maximum of this worker's and the peer's time, the same at both."""
    other = torch.empty(1, dtype=torch.float64)
    comm.exchange({peer: torch.tensor([seconds], dtype=torch.float64)}, {peer: other}).wait()
    return max(seconds, float(other))


def _rounded(value: float) -> float:
    """To three digits, the precision of the measurement."""
    return float(f"{value:.3g}")


def summarised(links: dict[tuple[int, int], Link]) -> tuple[Link, dict[tuple[int, int], Link]]:
    """A default link, and the links that differ from it."""
    if not links:
        return Link(), {}
    default = Link(
        _rounded(statistics.median(link.bandwidth for link in links.values())),
        _rounded(statistics.median(link.latency for link in links.values())),
    )
    return default, {pair: link for pair, link in links.items() if not _similar(link, default)}


def _similar(one: Link, two: Link) -> bool:
    ratios = [one.bandwidth / two.bandwidth, (one.latency + _SHORT) / (two.latency + _SHORT)]
    return all(1 / _SIMILAR < ratio < _SIMILAR for ratio in ratios)
