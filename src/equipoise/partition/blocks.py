"""Classes, owners and blocks: what the class-balanced partitions share."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .capacity import capacities


@dataclass
class Division:
    """A partition with its counts, values and notes."""

    blocks: list[np.ndarray]
    groups: np.ndarray  # the class of every example, 0, 1, ...
    counts: np.ndarray  # examples by class (rows) and worker
    values: np.ndarray  # the objective f by class and worker; NaN where none was optimised
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


def members_of(groups: np.ndarray) -> list[np.ndarray]:
    """The examples of each class."""
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if len(order) else []


def blocks_of(owner: np.ndarray, workers: int) -> list[np.ndarray]:
    """The examples of each worker, from the worker of each example."""
    return [np.flatnonzero(owner == j) for j in range(workers)]


def remarks(counts: np.ndarray, speeds: np.ndarray) -> list[str]:
    """What a user should know where exact proportions leave a worker without a class, or without any example."""
    notes = []
    sizes, active = counts.sum(1), int((speeds > 0).sum())
    small = int((sizes < active).sum())
    if small:
        notes.append(f"{small} of {len(sizes)} classes have fewer examples than workers: some workers get none of them")
    empty = np.flatnonzero((counts.sum(0) == 0) & (speeds > 0))
    if len(empty):
        notes.append(
            f"{len(empty)} workers are left without an example: there are more workers than the speeds can feed"
        )
    return notes


def stratified(groups: np.ndarray, speeds: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random owners within every class, in proportion to the speeds; and the counts by class and worker."""
    members = members_of(groups)
    counts = capacities([len(part) for part in members], speeds)
    owner = np.empty(len(groups), dtype=np.int32)
    for part, row in zip(members, counts, strict=True):
        owner[rng.permutation(part)] = np.repeat(np.arange(len(speeds)), row)
    return owner, counts


def blocks_with_notes_logged(division: Division) -> list[np.ndarray]:
    """The blocks; the notes go to the log as warnings."""
    import logging

    for note in division.notes:
        logging.getLogger("equipoise").warning("partition: %s", note)
    return division.blocks
