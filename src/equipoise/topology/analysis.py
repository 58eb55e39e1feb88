"""Properties of the weights of a bound topology, cached: topologies with the same identity share the results."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..core.errors import UserError

if TYPE_CHECKING:
    from .base import Topology

WINDOW = 64  # rounds examined where a sequence never repeats
_MOST_ROUNDS = 1000  # rounds simulated for such a sequence
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Key:
    """A bound topology as a cache key; two are equal if their identities are."""

    identity: str
    topology: Topology = field(compare=False, repr=False)


@lru_cache(maxsize=64)
def outgoing(key: Key, round: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    """For each worker, who mixes it in and with which weight: the columns of W without the diagonal."""
    columns: list[list[tuple[int, float]]] = [[] for _ in range(key.topology.size)]
    for rank in range(key.topology.size):
        for peer, weight in key.topology.neighbours(round, rank):
            columns[peer].append((rank, weight))
    return tuple(tuple(column) for column in columns)


@lru_cache(maxsize=256)
def intact(key: Key, round: int) -> bool:
    """Are all links up in this round?"""
    topology, size = key.topology, key.topology.size
    return all(len(topology.neighbours(round, r)) == len(topology.edges(round, r, size)) for r in range(size))


@lru_cache(maxsize=64)
def symmetric(key: Key) -> bool:
    topology = key.topology
    return all(
        sorted(topology.neighbours(round, rank)) == sorted(topology.targets(round, rank))
        for round in range(topology.cycle or WINDOW)
        for rank in range(topology.size)
    )


@lru_cache(maxsize=64)
def eigenvalues(key: Key, round: int) -> list[float]:
    """The eigenvalues of a symmetric W, the largest (which is 1) first."""
    if not key.topology.symmetric:
        raise UserError(
            f"{key.topology!r} over {key.topology.size} workers is directed: its eigenvalues have no order; "
            "use an undirected topology here, such as ring, torus or base-k"
        )
    return [float(value) for value in np.linalg.eigvalsh(key.topology.matrix(round))[::-1]]


@lru_cache(maxsize=64)
def rate(key: Key, round: int) -> float:
    if key.topology.size == 1:
        return 0.0
    if key.topology.symmetric:
        values = eigenvalues(key, round)
        return max(abs(values[1]), abs(values[-1]))
    return _disagreement(key.topology.matrix(round))


@lru_cache(maxsize=64)
def contraction(key: Key, rounds: int) -> float:
    product = np.eye(key.topology.size)
    for round in range(rounds):
        product = key.topology.matrix(round) @ product
    return _disagreement(product)


@lru_cache(maxsize=64)
def rounds_to_contract(key: Key, factor: float) -> int | None:
    topology = key.topology
    if topology.size == 1:
        return 0
    if topology.diameter() is None:
        return None
    if topology.cycle == 1 and topology.symmetric:  # ||W^r - J|| = lambda^r
        per_round = topology.rate()
        if per_round <= factor:
            return 1
        return math.ceil(math.log(factor) / math.log(per_round) - TOLERANCE) if per_round < 1.0 else None
    bound = factor + TOLERANCE
    before, done = _complete_periods(topology, bound) if topology.cycle else (np.eye(topology.size), 0)
    if before is None:
        return None
    for round in range(done, done + (topology.cycle or _MOST_ROUNDS)):
        before = topology.matrix(round) @ before
        if _disagreement(before) <= bound:
            return round + 1
    return None


def _complete_periods(topology: Topology, bound: float) -> tuple[np.ndarray | None, int]:
    """The product over as many complete periods as leave the disagreement above `bound`, and their number of rounds.

    Disagreement never grows under doubly stochastic W, so a binary search over powers of two needs few products.
    """
    product = np.eye(topology.size)
    for round in range(topology.cycle):
        product = topology.matrix(round) @ product
    powers = [product]
    while _disagreement(powers[-1]) > bound:
        if len(powers) > 40:  # it never falls: the weights move the mean, or two groups never exchange anything
            return None, 0
        powers.append(powers[-1] @ powers[-1])
    before, periods = np.eye(topology.size), 0
    for i in reversed(range(len(powers) - 1)):
        further = powers[i] @ before
        if _disagreement(further) > bound:
            before, periods = further, periods + 2**i
    return before, periods * topology.cycle


@lru_cache(maxsize=64)
def spread(key: Key) -> int | None:
    """Rounds until information of every worker has reached all others; sets of workers are the bits of an integer."""
    topology, size = key.topology, key.topology.size
    reached_by = [1 << rank for rank in range(size)]
    everyone, rounds, unchanged = (1 << size) - 1, 0, 0
    graphs: dict[int, list[list[int]]] = {}
    while any(sources != everyone for sources in reached_by):
        place = rounds % topology.cycle if topology.cycle else rounds
        if place not in graphs:
            graphs[place] = [[p for p, w in topology.neighbours(place, r) if w > 0.0] for r in range(size)]
        after = list(reached_by)
        for rank, peers in enumerate(graphs[place]):
            for peer in peers:
                after[rank] |= reached_by[peer]
        rounds, unchanged = rounds + 1, unchanged + 1 if after == reached_by else 0
        if unchanged >= (topology.cycle or WINDOW):  # a complete period changed nothing, so nothing will
            return None
        reached_by = after
    return rounds


@lru_cache(maxsize=64)
def fingerprint(key: Key) -> str:
    topology = key.topology
    digest = hashlib.sha256(struct.pack("<qq", topology.size, topology.cycle))
    for round in range(topology.cycle or WINDOW):
        for rank in range(topology.size):
            for peer, weight in sorted(topology.neighbours(round, rank)):
                digest.update(struct.pack("<qqqd", round, rank, peer, weight))
    return digest.hexdigest()[:16]


@lru_cache(maxsize=256)
def check_weights(key: Key, round: int, push_sum: bool) -> None:
    """Check that peers exist, weights are >= 0, rows and columns sum to 1, and undirected graphs are symmetric."""
    topology, size = key.topology, key.topology.size
    where = f"{topology!r} over {size} workers, round {round}"
    given, received = np.zeros(size), np.zeros(size)
    links: dict[tuple[int, int], float] = {}
    for rank in range(size):
        for peer, weight in topology.neighbours(round, rank):
            if not 0 <= peer < size or peer == rank or (rank, peer) in links:
                raise UserError(
                    f"{where}: worker {rank} lists peer {peer}: list other workers, each once, 0 to {size - 1}"
                )
            if not weight >= 0.0:
                raise UserError(f"{where}: the weight of {peer} at {rank} is {weight}: weights must not be negative")
            links[rank, peer] = weight
            given[peer], received[rank] = given[peer] + weight, received[rank] + weight
    for rank in range(size):
        if given[rank] > 1.0 + TOLERANCE:
            raise UserError(f"{where}: worker {rank} gives {given[rank]:.6g} of its model away: it may give 1 at most")
        if not push_sum and abs(received[rank] - given[rank]) > TOLERANCE:
            raise UserError(
                f"{where}: worker {rank} receives weights of {received[rank]:.6g}, gives {given[rank]:.6g}, which "
                "moves the mean: make them equal, use an undirected graph, or --sync sgp, which corrects it"
            )
    if not topology.directed:
        for (rank, peer), weight in links.items():
            if abs(links.get((peer, rank), 0.0) - weight) > TOLERANCE:
                raise UserError(
                    f"{where}: {rank} mixes in {peer} with weight {weight:.6g} but not the other way round: "
                    "make the weights symmetric or declare the topology `directed = True`"
                )


def _disagreement(product: np.ndarray) -> float:
    """||P - J||_2, from the eigenvalues of the squared matrix: several times faster than singular values."""
    centred = product - 1.0 / len(product)
    return float(np.sqrt(max(0.0, np.linalg.eigvalsh(centred.T @ centred)[-1])))
