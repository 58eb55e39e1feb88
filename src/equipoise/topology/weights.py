"""Mixing weights that a worker can compute from its own degree and those of its peers."""

from __future__ import annotations

from collections.abc import Callable, Collection


def metropolis(rank: int, peers: Callable[[int], Collection[int]]) -> list[tuple[int, float]]:
    """Metropolis-Hastings weights W_ij = 1 / (1 + max(deg_i, deg_j)): symmetric, and rows sum to at most 1.

    Reference: Xiao, Boyd and Kim, Distributed Average Consensus with Least-Mean-Square Deviation, JPDC 2007.
    """
    mine = peers(rank)
    return [(peer, 1.0 / (1 + max(len(mine), len(peers(peer))))) for peer in mine]
