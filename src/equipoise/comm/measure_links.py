"""The links between workers at hand, measured: what `equipoise cluster measure` writes."""

from __future__ import annotations

import statistics
import time

import torch

from ..simulate.cluster import PAYLOAD, Link
from .base import Comm, barrier

_PINGS = 20
_LONG = 0.2  # seconds that a message must take to tell a bandwidth
_MOST = 1 << 26  # bytes of one message at most
_ALIKE = 1.25  # links within this factor of each other count as equal


def measure_links(comm: Comm) -> dict[tuple[int, int], Link]:
    """The link of every pair, the same on all workers; pairs that share no worker are measured at the same time."""
    own: dict[tuple[int, int], Link] = {}
    with comm.uncounted():
        for games in round_robin_pairs(comm.size):
            barrier(comm)
            for pair in games:
                if comm.rank in pair:
                    link = _measured(comm, pair[0] + pair[1] - comm.rank)
                    if comm.rank == pair[0]:
                        own[pair] = link
        found = comm.gather_objects({pair: (link.bandwidth, link.latency) for pair, link in own.items()})
    return {pair: Link(*values) for row in found for pair, values in sorted(row.items())}


def round_robin_pairs(size: int) -> list[list[tuple[int, int]]]:
    """Rounds in which everybody meets one other at most; each pair once (the circle method)."""
    seats = [*range(size), *([-1] if size % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        games = [(min(a, b), max(a, b)) for a, b in zip(seats[:half], reversed(seats[half:]), strict=True)]
        rounds.append([game for game in games if game[0] >= 0])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def _measured(comm: Comm, peer: int) -> Link:
    latency = statistics.median(_exchanged(comm, peer, 1) for _ in range(_PINGS))
    bytes = 1 << 16
    while True:
        # Both ends decide by the same number: the longer of their two times.
        seconds = statistics.median(_agreed(comm, peer, _exchanged(comm, peer, bytes // 4)) for _ in range(3))
        if seconds >= _LONG or bytes >= _MOST:
            break
        bytes *= 4
    latency = _agreed(comm, peer, latency)
    return Link(_short(8.0 * bytes / max(seconds - latency, 1e-9) / PAYLOAD), _short(latency))


def _exchanged(comm: Comm, peer: int, elements: int) -> float:
    """Seconds of a message each way at the same time."""
    out, box = torch.zeros(elements), torch.empty(elements)
    _agreed(comm, peer, 0.0)  # both are here
    started = time.perf_counter()
    comm.exchange({peer: out}, {peer: box}).wait()
    return time.perf_counter() - started


def _agreed(comm: Comm, peer: int, seconds: float) -> float:
    box = torch.empty(1, dtype=torch.float64)
    comm.exchange({peer: torch.tensor([seconds], dtype=torch.float64)}, {peer: box}).wait()
    return max(seconds, float(box))


def _short(value: float) -> float:
    """Three digits: more are not measured."""
    return float(f"{value:.3g}")


def summarised(links: dict[tuple[int, int], Link]) -> tuple[Link, dict[tuple[int, int], Link]]:
    """A link for all, and those that differ from it."""
    if not links:
        return Link(), {}
    usual = Link(
        _short(statistics.median(link.bandwidth for link in links.values())),
        _short(statistics.median(link.latency for link in links.values())),
    )
    return usual, {pair: link for pair, link in links.items() if not _alike(link, usual)}


def _alike(one: Link, two: Link) -> bool:
    ratios = [one.bandwidth / two.bandwidth, (one.latency + 1e-4) / (two.latency + 1e-4)]
    return all(1 / _ALIKE < ratio < _ALIKE for ratio in ratios)
