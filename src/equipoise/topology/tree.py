"""The spanning tree of least depth."""

from __future__ import annotations

from typing import NamedTuple


class Tree(NamedTuple):
    """A rooted spanning tree."""

    order: list[int]  # workers as they are reached, the root first
    parent: list[int]  # of each worker; the root's is itself
    depth: list[int]

    def subtree_sizes(self) -> list[int]:
        """The number of workers in the subtree of each worker, itself included."""
        sizes = [1] * len(self.order)
        for rank in reversed(self.order[1:]):
            sizes[self.parent[rank]] += sizes[rank]
        return sizes


def shallowest_tree(peers: list[list[int]]) -> Tree:
    """The breadth-first tree of least depth; of several, the one with the lowest root.

    `peers` are the neighbours of each worker; the graph must be connected.
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
