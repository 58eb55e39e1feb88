"""Connectivity of a graph that is given as the peers of each worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def reach(graph: Sequence[Iterable[int]], start: int) -> set[int]:
    """All workers that `start` reaches along the links, itself included."""
    reached, frontier = {start}, [start]
    while frontier:
        new = [peer for peer in graph[frontier.pop()] if peer not in reached]
        reached.update(new)
        frontier.extend(new)
    return reached


def components(graph: Sequence[Iterable[int]]) -> list[list[int]]:
    """The connected components of an undirected graph, each sorted, the one of worker 0 first."""
    unseen, result = set(range(len(graph))), []
    while unseen:
        component = reach(graph, min(unseen))
        unseen -= component
        result.append(sorted(component))
    return result
