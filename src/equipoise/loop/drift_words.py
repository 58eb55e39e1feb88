"""The errors that name who differs from the others, and in what: the same line on all workers."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from ..comm.base import Comm
from ..core.errors import Drift


class RoundLink(NamedTuple):
    """Of a round: what flows from one rank to another."""

    round: int
    source: int
    target: int
    weight: float


def worker_name(comm: Comm, rank: int) -> int:
    """A worker's number for the whole run."""
    return rank if comm.membership is None else comm.membership.roster.members[rank]


def difference(comm: Comm, step: int, kind: str, values: list[Any], told: list[dict[str, Any]]) -> Drift:
    """values: a hash of each worker; told: what it was made of, by name."""
    common, count = Counter(values).most_common(1)[0]
    majority = 2 * count > len(values)
    # Without a majority nobody is known to be right: the first two that differ are named.
    other = values.index(common) if majority else 0
    rank = next(rank for rank, value in enumerate(values) if value != values[other])
    who = worker_name(comm, rank)
    others = "the others" if majority and len(values) > 2 else f"worker {worker_name(comm, other)}"
    here, there = told[rank], told[other]
    found = ""
    for name in {**there, **here}:
        if here.get(name) != there.get(name):
            found = f": {name} is {here.get(name, 'not set')} there and {there.get(name, 'not set')} on {others}"
            break
    when = f" at step {step}" if step else ""
    return Drift(f"worker {who} differs from {others} in its {kind}{when}{found}", who, step)


def other_order(comm: Comm, step: int, epoch: int, wrong: list[int]) -> Drift:
    """wrong: the ranks that expect another order of the next one than that it has."""
    size = comm.size
    # Whoever is wrong about itself is wrong about the next one too, unless only its generator differs.
    both = [rank for rank in wrong if (rank - 1) % size in wrong]
    odd = both[0] if len(both) == 1 else (wrong[0] + 1) % size
    who, other = worker_name(comm, odd), worker_name(comm, (odd - 1) % size)
    return Drift(
        f"worker {who} differs from worker {other} in its order at step {step}: in epoch {epoch} it visits its "
        f"examples in another order than worker {other} computes: another seed, other data or another generator",
        who,
        step,
    )


def other_links(comm: Comm, step: int, told: list[list[RoundLink]]) -> Drift:
    """told: the links of each rank, at both ends."""
    known = [set(links) for links in told]
    unmatched = [
        (link.round, rank, link)
        for rank, links in enumerate(told)
        for link in links
        if link not in known[link.target if link.source == rank else link.source]
    ]
    counts = Counter(rank for _, rank, _ in unmatched).most_common()
    # The odd one disagrees with several, each of them with it alone; of a single link nobody can tell.
    odd = counts[0][0] if len(counts) == 1 or counts[0][1] > counts[1][1] else min(unmatched)[1]
    _, rank, link = min(row for row in unmatched if row[1] == odd)
    peer = link.target if link.source == rank else link.source
    who, whom = worker_name(comm, rank), worker_name(comm, peer)
    theirs = [other.weight for other in told[peer] if other[:3] == link[:3]]
    instead = f"worker {whom} has {theirs[0]:g}" if theirs else f"worker {whom} has no such link"
    way = "to" if link.source == rank else "from"
    return Drift(
        f"worker {who} differs from worker {whom} in its topology at step {step}: in round {link.round} it has a link "
        f"{way} worker {whom} with weight {link.weight:g}, and {instead}",
        who,
        step,
    )
