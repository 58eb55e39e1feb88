"""Every topology with some of its options, and the world sizes to try it on."""

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
    """World sizes of every kind that this topology accepts: one, two, odd, prime, square, large."""
    if isinstance(topology, Edges):
        return [7]
    if isinstance(topology, Hypercube):
        return [1, 2, 4, 8, 16, 32]
    if isinstance(topology, Torus):
        return [1, 2, 3, 4, 6, 9, 12, 16, 33]
    least = topology.hub + 1 if isinstance(topology, Star) else 1
    return [size for size in (1, 2, 3, 4, 5, 6, 7, 9, 12, 16, 25, 33) if size == 1 or size >= least]


def name(value: object) -> str:
    return repr(value).replace("lazy=False, slack=1.0, drop=0.0, drop_seed=0", "")[:60]
