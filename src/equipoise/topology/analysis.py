"""What follows from the weights of a bound topology. Cached by what it is: equal ones share it."""

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

WINDOW = 64  # rounds looked at where a sequence never repeats
_LONG = 1000  # rounds simulated for such a sequence
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Key:
    """A bound topology as a key of a cache: equal if the identity is."""

    identity: str
    topology: Topology = field(compare=False, repr=False)


@lru_cache(maxsize=64)
def outgoing(key: Key, round: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    """For each worker who mixes it in, with which weight: the columns of W without the diagonal."""
    columns: list[list[tuple[int, float]]] = [[] for _ in range(key.topology.size)]
    for rank in range(key.topology.size):
        for peer, weight in key.topology.neighbours(round, rank):
            columns[peer].append((rank, weight))
    return tuple(tuple(column) for column in columns)


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
    """Of a symmetric W, the largest (which is 1) first."""
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
        slow = topology.rate()
        if slow <= factor:
            return 1
        return math.ceil(math.log(factor) / math.log(slow) - TOLERANCE) if slow < 1.0 else None
    enough = factor + TOLERANCE
    before, done = _whole_periods(topology, enough) if topology.cycle else (np.eye(topology.size), 0)
    if before is None:
        return None
    for round in range(done, done + (topology.cycle or _LONG)):
        before = topology.matrix(round) @ before
        if _disagreement(before) <= enough:
            return round + 1
    return None


def _whole_periods(topology: Topology, enough: float) -> tuple[np.ndarray | None, int]:
    """The product of the most whole periods that do not contract enough, and their number of rounds.

    Disagreement never grows under doubly stochastic W, so powers of two find that number in few products.
    """
    product = np.eye(topology.size)
    for round in range(topology.cycle):
        product = topology.matrix(round) @ product
    powers = [product]
    while _disagreement(powers[-1]) > enough:
        if len(powers) > 40:  # it never will: the weights move the mean, or keep two camps apart
            return None, 0
        powers.append(powers[-1] @ powers[-1])
    before, periods = np.eye(topology.size), 0
    for i in reversed(range(len(powers) - 1)):
        further = powers[i] @ before
        if _disagreement(further) > enough:
            before, periods = further, periods + 2**i
    return before, periods * topology.cycle


@lru_cache(maxsize=64)
def spread(key: Key) -> int | None:
    """Rounds until everybody has heard of everybody, by sets of workers as bits of one integer each."""
    topology, size = key.topology, key.topology.size
    heard = [1 << rank for rank in range(size)]
    everybody, rounds, still = (1 << size) - 1, 0, 0
    graphs: dict[int, list[list[int]]] = {}
    while any(known != everybody for known in heard):
        place = rounds % topology.cycle if topology.cycle else rounds
        if place not in graphs:
            graphs[place] = [[p for p, w in topology.neighbours(place, r) if w > 0.0] for r in range(size)]
        after = list(heard)
        for rank, peers in enumerate(graphs[place]):
            for peer in peers:
                after[rank] |= heard[peer]
        rounds, still = rounds + 1, still + 1 if after == heard else 0
        if still >= (topology.cycle or WINDOW):  # a whole period brought no news: nothing will
            return None
        heard = after
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
    """Peers that exist, weights not negative, rows and columns that sum to 1, symmetry where claimed."""
    topology, size = key.topology, key.topology.size
    who = f"{topology!r} over {size} workers, round {round}"
    given, got = np.zeros(size), np.zeros(size)
    links: dict[tuple[int, int], float] = {}
    for rank in range(size):
        for peer, weight in topology.neighbours(round, rank):
            if not 0 <= peer < size or peer == rank or (rank, peer) in links:
                raise UserError(
                    f"{who}: worker {rank} lists peer {peer}: list other workers, each once, 0 to {size - 1}"
                )
            if not weight >= 0.0:
                raise UserError(f"{who}: the weight of {peer} at {rank} is {weight}: weights must not be negative")
            links[rank, peer] = weight
            given[peer], got[rank] = given[peer] + weight, got[rank] + weight
    for rank in range(size):
        if given[rank] > 1.0 + TOLERANCE:
            raise UserError(f"{who}: worker {rank} gives {given[rank]:.6g} of its model away: it may give 1 at most")
        if not push_sum and abs(got[rank] - given[rank]) > TOLERANCE:
            raise UserError(
                f"{who}: worker {rank} receives weights of {got[rank]:.6g}, gives {given[rank]:.6g}, which "
                "moves the mean: make them equal, use an undirected graph, or --sync sgp, which corrects it"
            )
    if not topology.directed:
        for (rank, peer), weight in links.items():
            if abs(links.get((peer, rank), 0.0) - weight) > TOLERANCE:
                raise UserError(
                    f"{who}: {rank} mixes in {peer} with weight {weight:.6g} but not the other way round: "
                    "make the weights symmetric or declare the topology `directed = True`"
                )


def _disagreement(product: np.ndarray) -> float:
    """||P - J||_2, by the eigenvalues of the square: several times faster than by singular values."""
    centred = product - 1.0 / len(product)
    return float(np.sqrt(max(0.0, np.linalg.eigvalsh(centred.T @ centred)[-1])))
