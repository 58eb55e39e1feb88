"""The spanning tree of least depth."""

from __future__ import annotations

from typing import NamedTuple


class Tree(NamedTuple):
    """A rooted spanning tree."""

    order: list[int]  # ranks in breadth-first order, the root first
    parent: list[int]  # of each rank; the root is its own parent
    depth: list[int]  # of each rank; 0 for the root

    def subtree_sizes(self) -> list[int]:
        """The number of workers in the subtree of each rank, itself included."""
        sizes = [1] * len(self.order)
        for rank in reversed(self.order[1:]):
            sizes[self.parent[rank]] += sizes[rank]
        return sizes

    def children(self) -> list[list[int]]:
        """The children of each rank, the last of the breadth-first order first."""
        children: list[list[int]] = [[] for _ in self.order]
        for rank in reversed(self.order[1:]):
            children[self.parent[rank]].append(rank)
        return children


def shallowest_tree(peers: list[list[int]]) -> Tree:
    """The breadth-first tree of least depth; among equals, the one with the lowest root.

    `peers` are the neighbours of each rank; the graph must be connected.
    """
    return min((_breadth_first(peers, root) for root in range(len(peers))), key=lambda tree: max(tree.depth))


def _breadth_first(peers: list[list[int]], root: int) -> Tree:
    order, parent, depth = [root], {root: root}, {root: 0}
    for rank in order:  # grows while it is read
        for peer in peers[rank]:
            if peer not in parent:
                parent[peer], depth[peer] = rank, depth[rank] + 1
                order.append(peer)
    ranks = range(len(peers))
    return Tree(order, [parent[rank] for rank in ranks], [depth[rank] for rank in ranks])
