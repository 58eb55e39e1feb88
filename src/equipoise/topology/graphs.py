"""What several topologies ask of a graph given as the peers of each worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def reach(graph: Sequence[Iterable[int]], start: int) -> set[int]:
    """Everybody whom `start` reaches along the links, itself included."""
    found, frontier = {start}, [start]
    while frontier:
        new = [peer for peer in graph[frontier.pop()] if peer not in found]
        found.update(new)
        frontier.extend(new)
    return found


def parts(graph: Sequence[Iterable[int]]) -> list[list[int]]:
    """The connected parts of an undirected graph, each sorted, the one of worker 0 first."""
    unseen, found = set(range(len(graph))), []
    while unseen:
        part = reach(graph, min(unseen))
        unseen -= part
        found.append(sorted(part))
    return found
