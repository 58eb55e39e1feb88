"""Groups, owners and blocks: what every class-balanced partition shares."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .capacity import capacities


@dataclass
class Division:
    """A partition and how it came about."""

    blocks: list[np.ndarray]
    groups: np.ndarray  # the class of every example, 0, 1, ...
    counts: np.ndarray  # examples by class (rows) and worker
    values: np.ndarray  # f by class and worker; NaN where nothing was optimised
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


def members_of(groups: np.ndarray) -> list[np.ndarray]:
    """The examples of each group."""
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if len(order) else []


def blocks_of(owner: np.ndarray, workers: int) -> list[np.ndarray]:
    return [np.flatnonzero(owner == j) for j in range(workers)]


def remarks(counts: np.ndarray, speeds: np.ndarray) -> list[str]:
    """What a user should know of a partition whose counts are right but whose wishes could not all be met."""
    found = []
    sizes, active = counts.sum(1), int((speeds > 0).sum())
    small = int((sizes < active).sum())
    if small:
        found.append(f"{small} of {len(sizes)} classes have fewer examples than workers: some workers get none of them")
    empty = np.flatnonzero((counts.sum(0) == 0) & (speeds > 0))
    if len(empty):
        found.append(
            f"{len(empty)} workers are left without an example: there are more workers than the speeds can feed"
        )
    return found


def stratified(groups: np.ndarray, speeds: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Owners at random within every class, and the counts."""
    members = members_of(groups)
    counts = capacities([len(part) for part in members], speeds)
    owner = np.empty(len(groups), dtype=np.int32)
    for part, row in zip(members, counts, strict=True):
        owner[rng.permutation(part)] = np.repeat(np.arange(len(speeds)), row)
    return owner, counts


def logged(plan: Division) -> list[np.ndarray]:
    """The blocks of a plan; its remarks go to the log."""
    import logging

    for note in plan.notes:
        logging.getLogger("equipoise").warning("partition: %s", note)
    return plan.blocks
