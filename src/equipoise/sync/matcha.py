from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..core.errors import UserError
from ..core.method import Metadata, option
from ..core.vector import ModelSize
from ..topology.analysis import Key
from ..topology.base import Topology
from ..topology.ring import Ring
from .base import Needs
from .gossip import Gossip
from .mixing import RoundLinks, message_bytes, require_static, weighted
from .shares import shares_of

_PATIENCE = 100  # steps of the ascent without an improvement

Pairs = tuple[tuple[int, int], ...]


@dataclass
class MATCHA(Gossip):
    """D-PSGD over a random subset of the links in each round: the graph is split into matchings, each drawn or not.

        x_i <- sum_j W_ij (x_j - a g_j(x_j)),   W = I - alpha sum_m b_m L_m,   b_m = 1 with probability p_m, else 0

    L_m is the Laplacian of matching m of M: disjoint links, which can be used in parallel. p maximises
    lambda_2(sum_m p_m L_m) with sum_m p_m = budget M, so links critical for connectivity are drawn more often.
    alpha minimises rho = ||E[W^T W] - 11^T/n||, the expected contraction of the squared disagreement in a round.
    The draws follow from (seed, round) and are the same on all workers. The topology gives the graph, not its weights.
    Stores only the messages it receives; sends one vector along each drawn link, for matchings of equal size `budget`
    times what D-PSGD sends. Like D-PSGD it stops at a distance from the optimum proportional to the step, and
    fluctuates there with the draws. Any optimizer may take the local step; its state stays local.
    Where shares pi_i of the examples differ, W_ij min(1, pi_j / pi_i) conserves the mean weighted by them.
    Reference: Wang et al., MATCHA: Speeding Up Decentralized SGD via Matching Decomposition Sampling, 2019
    (arXiv 1905.09435).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="matcha", help="gossip over randomly drawn matchings, within a budget", cites=("wang2019matcha",)
    )

    draws_links: ClassVar[bool] = True
    HEALTH: ClassVar[tuple[str, ...]] = ("spectral_gap", "matchings_per_round")

    topology: Topology = option(Ring(), help="the graph that is split; undirected, the same in every round")
    budget: float = option(0.5, help="average part of the matchings that a round uses", above=0, most=1)
    seed: int = option(0, help="of the draws; the same on all workers", least=0)

    def check(self) -> None:
        if self.topology.lazy or self.topology.slack != 1.0:
            raise UserError("MATCHA computes its own weights: omit lazy and slack of the topology, or lower the budget")

    def needs(self) -> Needs:
        return Needs(static_graph=True)

    def init_state(self) -> None:
        graph = self.agreed_graph()
        plans = self.context.comm.gather_objects(
            (self.budget, self.seed, self.planned(self.context.size, shares_of(self.context, self.weights)))
        )
        if any(plan[:2] != plans[0][:2] for plan in plans):
            raise UserError("MATCHA: workers would draw different links: give all of them the same budget and seed")
        self.plan: MatchingPlan = plans[0][2]  # of rank 0: hardware differs in the eigenvectors it computes
        self.start_gossip(graph, weighted=True, links=self.links_of)

    def planned(self, size: int, shares: list[float] | None = None) -> MatchingPlan:
        graph = self.topology.on(size)
        return make_plan(Key(graph.identity, graph), self.budget, tuple(shares or ()))

    def links_of(self, round: int) -> RoundLinks:
        peers = drawn(self.plan, self.seed, round, self.context.size)[self.context.rank]
        alpha = self.plan.alpha
        links = RoundLinks(1.0 - alpha * len(peers), [(peer, alpha) for peer in peers], list(peers))
        return weighted(links, self.context.rank, self.mixing.shares)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None: ...

    def after_step(self, x: torch.Tensor) -> None:
        self.mixing.mix(x)

    @property
    def spectral_gap(self) -> float:
        """1 - sqrt(rho), the counterpart of 1 - lambda on a static graph."""
        return 1.0 - float(self.plan.rho**0.5)

    @property
    def matchings_per_round(self) -> float:
        return sum(self.plan.probabilities)

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        messages = len(drawn(self.planned(size), self.seed, round, size)[rank]) if due else 0
        return messages, messages * message_bytes(model)

    def takes_wires(self, size: int) -> tuple[str, str]:
        return "casts", "its links change from round to round, so receivers have no replica of a sender"


class MatchingPlan(NamedTuple):
    matchings: tuple[Pairs, ...]
    probabilities: tuple[float, ...]
    alpha: float
    rho: float


@lru_cache(maxsize=256)
def drawn(plan: MatchingPlan, seed: int, round: int, size: int) -> tuple[tuple[int, ...], ...]:
    """The peers of each rank in this round."""
    peers: list[list[int]] = [[] for _ in range(size)]
    uniform = np.random.default_rng([seed, round]).random(len(plan.matchings))
    for draw, probability, matching in zip(uniform, plan.probabilities, plan.matchings, strict=True):
        for a, b in matching if draw < probability else ():
            peers[a].append(b)
            peers[b].append(a)
    return tuple(map(tuple, peers))


@lru_cache(maxsize=16)
def make_plan(key: Key, budget: float, shares: tuple[float, ...] = ()) -> MatchingPlan:
    """Matchings, probabilities and alpha for a bound topology. Shares change alpha only, not the probabilities."""
    graph = key.topology
    require_static(graph, MATCHA.__name__)
    matchings = split([(a, b) for a in range(graph.size) for b, _ in graph.neighbours(0, a) if a < b], graph.size)
    laplacians = np.zeros((len(matchings), graph.size, graph.size))
    for laplacian, matching in zip(laplacians, matchings, strict=True):
        for a, b in matching:
            laplacian[[a, b], [a, b]] = 1.0
            laplacian[[a, b], [b, a]] = -1.0
    p = _probabilities(laplacians, budget)
    pi = np.array(shares or [1.0 / graph.size] * graph.size)
    if shares:  # P^(1/2) L P^(-1/2) of weighted links: symmetric, with the same eigenvalues
        for laplacian, matching in zip(laplacians, matchings, strict=True):
            for a, b in matching:
                less, more = sorted((pi[a], pi[b]))
                laplacian[[a, b], [a, b]] = less / pi[[a, b]]
                laplacian[[a, b], [b, a]] = -((less / more) ** 0.5)
    return MatchingPlan(matchings, tuple(p.tolist()), *_best_alpha(p, laplacians, pi))


def split(edges: list[tuple[int, int]], size: int) -> tuple[Pairs, ...]:
    """An edge colouring: as many matchings as the largest degree if the graph is bipartite, few more otherwise."""
    at: list[dict[int, int]] = [{} for _ in range(size)]  # of each rank: matching -> partner
    count = max(sum(rank in edge for edge in edges) for rank in range(size))
    for a, b in edges:
        chosen = _free(at, a, b, count)
        count = max(count, chosen + 1)
        at[a][chosen], at[b][chosen] = b, a
    return tuple(tuple((a, each[m]) for a, each in enumerate(at) if each.get(m, -1) > a) for m in range(count))


def _free(at: list[dict[int, int]], a: int, b: int, count: int) -> int:
    """A matching that contains neither a nor b, if need be after swapping two along a path; a new one if that fails."""
    free_a, free_b = ([m for m in range(count) if m not in at[end]] for end in (a, b))
    shared = set(free_a) & set(free_b)
    if shared:
        return min(shared)
    for one in free_a:
        for other in free_b:
            # The alternating path from b along edges of `one` and `other`. Swapping the two along it frees `one` at b,
            # and keeps it free at a unless the path ends there.
            path, end, now, then = [], b, one, other
            while now in at[end]:
                path.append((end, at[end][now], now))
                end, now, then = at[end][now], then, now
            if end != a:
                for u, v, m in path:
                    del at[u][m], at[v][m]
                for u, v, m in path:
                    at[u][one + other - m], at[v][one + other - m] = v, u
                return one
    return count


def _probabilities(laplacians: npt.NDArray[np.float64], budget: float) -> npt.NDArray[np.float64]:
    """The p that maximises lambda_2(sum p_m L_m), sum p_m = budget M, 0 <= p <= 1: ascent along supergradients."""
    p = best = np.full(len(laplacians), budget)
    best_value, best_step, step = -1.0, 0, 0
    while step < best_step + _PATIENCE and step < 5 * _PATIENCE:
        values, vectors = np.linalg.eigh(np.tensordot(p, laplacians, 1))
        if values[1] > best_value * (1.0 + 1e-6):
            best_value, best, best_step = values[1], p, step
        gradient = np.einsum("i,mij,j->m", vectors[:, 1], laplacians, vectors[:, 1])
        step += 1
        p = _project(p + gradient / max(1e-12, gradient.max()) / step**0.5, budget * len(p))
    return best


def _project(p: npt.NDArray[np.float64], total: float) -> npt.NDArray[np.float64]:
    """The nearest point with 0 <= p <= 1 and the sum `total`."""
    low, high = -1.0 - p.max(), 1.0 - p.min()
    for _ in range(50):
        shift = (low + high) / 2.0
        low, high = (shift, high) if np.clip(p + shift, 0.0, 1.0).sum() < total else (low, shift)
    return np.asarray(np.clip(p + high, 0.0, 1.0))


def _best_alpha(
    p: npt.NDArray[np.float64], laplacians: npt.NDArray[np.float64], pi: npt.NDArray[np.float64]
) -> tuple[float, float]:
    """The alpha that minimises rho, which is convex in it, and that rho. An alpha of 1 swaps two models.

    E[W^T W] = I - 2 alpha E[L] + alpha^2 (E[L]^2 + sum p_m (1 - p_m) L_m^2)
    """
    mean = np.tensordot(p, laplacians, 1)
    square = mean @ mean + np.tensordot(p * (1.0 - p), laplacians @ laplacians, 1)
    equal = bool((pi == pi[0]).all())
    centred = np.eye(len(mean)) - (1.0 / len(mean) if equal else np.sqrt(np.outer(pi, pi)))

    def rho(alpha: float) -> float:
        return float(np.linalg.eigvalsh(centred - 2.0 * alpha * mean + alpha**2 * square)[-1])

    low, high = 0.0, 1.0
    for _ in range(40):
        left, right = low + (high - low) / 3.0, high - (high - low) / 3.0
        low, high = (low, right) if rho(left) < rho(right) else (left, high)
    return high, rho(high)
