from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations
from typing import ClassVar

from ..core.method import Metadata, option
from .base import Topology

Link = tuple[int, int, float]  # two workers that mix each other in, and the weight
Round = list[Link]


@dataclass
class BaseK(Topology):
    """The Base-(k+1) graph: at most k peers per round, and one period gives the exact mean, for any n.

    Three constructions, each built on the one before. *Cube*: if n = f_1 ... f_L with all f <= k + 1, round j
    averages the cliques of workers that differ in digit j of their number. *Simple*: otherwise write n in
    base k + 1 as groups of a_l (k+1)^p_l workers; each group averages itself, then group j meets all later
    groups once, with weights that make the mean of each of its a_j parts the global one, and the parts spread
    it by cubes. *Nested*: split off the largest divisor of n whose primes are <= k + 1; blocks of n / divisor
    workers run the simple sequence, cubes across the blocks finish. Length at most 2 log_{k+1} n + 2.
    Symmetric and doubly stochastic in every round.

    Reference: Takezawa et al., Beyond Exponential Graph: Communication-Efficient Topologies for Decentralized
    Learning via Finite-time Convergence, NeurIPS 2023.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="base-k",
        help="at most k peers per round; one period gives the exact mean for any world size",
        cites=("takezawa2023beyond",),
    )

    peers: int = option(1, help="k: the most peers of a worker in one round", least=1)

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        rounds = _table(size, self.peers)
        return rounds[round % len(rounds)][rank]

    def period_length(self, size: int) -> int:
        return len(_table(size, self.peers))


@lru_cache(maxsize=16)
def _table(size: int, degree: int) -> list[list[list[tuple[int, float]]]]:
    """The peers and their weights, by round and worker."""
    table = []
    for links in _shortest(range(size), degree):
        peers: list[list[tuple[int, float]]] = [[] for _ in range(size)]
        for a, b, weight in links:
            peers[a].append((b, weight))
            peers[b].append((a, weight))
        table.append(peers)
    return table


def _shortest(workers: Sequence[int], degree: int) -> list[Round]:
    simple = _simple(workers, degree)
    rest = len(workers)
    for prime in range(2, degree + 2):
        while rest % prime == 0:
            rest //= prime
    blocks = [workers[start : start + rest] for start in range(0, len(workers), rest)]
    factors = _factors(len(blocks), degree + 1)
    assert factors is not None
    nested = _in_parallel(_simple(block, degree) for block in blocks)
    nested += _in_parallel(_cube(across, factors) for across in zip(*blocks, strict=True))
    return simple if len(simple) < len(nested) else nested


def _simple(workers: Sequence[int], degree: int) -> list[Round]:
    factors = _factors(len(workers), degree + 1)
    if factors is not None:
        return _cube(workers, factors)
    groups = _groups(workers, degree + 1)  # each a list of equal parts of (k+1)^p workers
    flat = [[worker for part in group for worker in part] for group in groups]
    within = [_simple(group, degree) for group in flat]
    spread = [
        _in_parallel(_simple(part, degree) for part in group) or inside
        for group, inside in zip(groups, within, strict=True)
    ]
    rounds = _in_parallel(within)
    for turn in range(len(spread[0]) + 1):
        links: Round = []
        if turn < len(groups) - 1:
            links += _meet(groups[turn], [worker for group in flat[turn + 1 :] for worker in group], degree)
        for j, parts in enumerate(spread):
            met = min(j, len(groups) - 2)  # the last two groups meet in the same turn
            if turn > met:
                links += _cyclic(parts, turn - met - 1)
        rounds.append(links)
    return rounds


def _meet(group: Sequence[Sequence[int]], later: list[int], degree: int) -> Round:
    """Link each later worker to one worker of every part of the group, and the remaining ones to each other.

    With the weights |group| / (|group| + |later|) / parts the later workers hold the mean of both sides, and
    every part of the group sums to its share of it.
    """
    total = sum(len(part) for part in group)
    weight = total / (total + len(later)) / len(group)
    links = [(worker, part[i], weight) for i, worker in enumerate(later) for part in group]
    idle = [worker for part in group for worker in part[len(later) :]]
    cliques = [idle[start : start + degree + 1] for start in range(0, len(idle), degree + 1)]
    return links + [link for clique in cliques for link in _average(clique)]


def _groups(workers: Sequence[int], base: int) -> list[list[Sequence[int]]]:
    """The workers by the digits of their number: digit a at place p is a group of a parts of base^p."""
    power = 1
    while power * base <= len(workers):
        power *= base
    groups, start = [], 0
    while power:
        digit = (len(workers) - start) // power
        if digit:
            groups.append([workers[start + power * i : start + power * (i + 1)] for i in range(digit)])
        start, power = start + digit * power, power // base
    return groups


def _cube(workers: Sequence[int], factors: tuple[int, ...]) -> list[Round]:
    rounds, stride = [], 1
    for factor in factors:
        firsts = [i for i in range(len(workers)) if i // stride % factor == 0]
        rounds.append([link for i in firsts for link in _average(workers[i : i + stride * factor : stride])])
        stride *= factor
    return rounds


@cache
def _factors(number: int, most: int) -> tuple[int, ...] | None:
    """The fewest factors <= `most` whose product is `number`; None if a prime factor is larger."""
    if number == 1:
        return ()
    rests = [(f, _factors(number // f, most)) for f in range(2, min(most, number) + 1) if number % f == 0]
    candidates = [(f, *rest) for f, rest in rests if rest is not None]
    return min(candidates, key=len) if candidates else None


def _average(clique: Sequence[int]) -> Round:
    return [(a, b, 1.0 / len(clique)) for a, b in combinations(clique, 2)]


def _in_parallel(sequences: Iterable[list[Round]]) -> list[Round]:
    """Run sequences over disjoint workers in parallel; shorter ones repeat.

    Once the mean is reached a repetition changes nothing in theory; in training, new disagreement arises all the time.
    """
    parallel = list(sequences)
    length = max(map(len, parallel), default=0)
    return [[link for rounds in parallel for link in _cyclic(rounds, i)] for i in range(length)]


def _cyclic(rounds: list[Round], index: int) -> Round:
    return rounds[index % len(rounds)] if rounds else []
