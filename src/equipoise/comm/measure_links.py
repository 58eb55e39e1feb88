"""Measures the links between the running workers, for `equipoise cluster measure`."""

from __future__ import annotations

import statistics
import time

import torch

from ..simulate.cluster import PAYLOAD, Link
from .base import Comm, barrier

_PINGS = 20
_LONG = 0.2  # seconds: shorter messages do not give a reliable bandwidth
_MOST = 1 << 26  # bytes of one message at most
_SIMILAR = 1.25  # links within this factor of each other count as equal


def measure_links(comm: Comm) -> dict[tuple[int, int], Link]:
    """The link of every pair of ranks, the same on all workers; disjoint pairs are measured at the same time."""
    own: dict[tuple[int, int], Link] = {}
    with comm.uncounted():
        for pairs in round_robin_pairs(comm.size):
            barrier(comm)
            for pair in pairs:
                if comm.rank in pair:
                    link = _measure(comm, pair[0] + pair[1] - comm.rank)
                    if comm.rank == pair[0]:
                        own[pair] = link
        rows = comm.gather_objects({pair: (link.bandwidth, link.latency) for pair, link in own.items()})
    return {pair: Link(*values) for row in rows for pair, values in sorted(row.items())}


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


def _measure(comm: Comm, peer: int) -> Link:
    latency = statistics.median(_time_exchange(comm, peer, 1) for _ in range(_PINGS))
    bytes = 1 << 16
    while True:
        # Both ends decide by the same number: the longer of their two times.
        seconds = statistics.median(_longest(comm, peer, _time_exchange(comm, peer, bytes // 4)) for _ in range(3))
        if seconds >= _LONG or bytes >= _MOST:
            break
        bytes *= 4
    latency = _longest(comm, peer, latency)
    return Link(_rounded(8.0 * bytes / max(seconds - latency, 1e-9) / PAYLOAD), _rounded(latency))


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
    ratios = [one.bandwidth / two.bandwidth, (one.latency + 1e-4) / (two.latency + 1e-4)]
    return all(1 / _SIMILAR < ratio < _SIMILAR for ratio in ratios)
