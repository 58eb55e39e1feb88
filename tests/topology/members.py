"""Every topology with some of its options, and the sizes from 1 to 33 that it takes."""

from __future__ import annotations

from equipoise.topology import (
    BaseK,
    Complete,
    Edges,
    Exponential,
    Hypercube,
    Matching,
    OnePeer,
    Path,
    Random,
    Ring,
    Star,
    Topology,
    Torus,
)

CYCLE = Edges(links=[(i, (i + 1) % 7) for i in range(7)])
ARROWS = Edges(links=[(i, (i + hop) % 7) for i in range(7) for hop in (1, 3)], directed=True)

MEMBERS: list[Topology] = [
    Complete(),
    Ring(),
    Ring(lazy=True),
    Path(),
    Path(slack=0.3),
    Star(),
    Star(hub=2, lazy=True, slack=0.5),
    Torus(),
    Hypercube(),
    Exponential(),
    Exponential(lazy=True),
    OnePeer(),
    OnePeer(slack=0.4),
    BaseK(),
    BaseK(peers=2),
    BaseK(peers=4, lazy=True),
    Matching(),
    Matching(seed=5, lazy=True),
    Random(),
    Random(probability=0.4, seed=3),
    CYCLE,
    ARROWS,
]


def sizes(topology: Topology) -> list[int]:
    every = range(1, 34)
    if isinstance(topology, Edges):
        return [7]
    if isinstance(topology, Hypercube):
        return [1, 2, 4, 8, 16, 32]
    if isinstance(topology, Torus):
        return [n for n in every if n < 4 or any(n % d == 0 for d in range(2, n))]
    if isinstance(topology, Star):
        return [n for n in every if n == 1 or n > topology.hub]
    return list(every)


CASES = [(topology, size) for topology in MEMBERS for size in sizes(topology)]
SOME = [(topology, size) for topology, size in CASES if size in (1, 2, 3, 6, 7, 16)]


def name(value: object) -> str:
    return repr(value).replace("lazy=False, slack=1.0", "")[:60]
