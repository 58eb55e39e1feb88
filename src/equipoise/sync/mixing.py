"""One round of gossip, x_i <- sum_j W_ij x_j, shared by the decentralised methods.

One message per neighbour, sent straight from the vector (no packing); what arrives is kept in buffers that are made
once. `begin` and `end` are apart so that a method can compute while the messages travel; a round counts, on the clock
and in the ledger, when it ends. `agree` is what a method calls first: the same valid graph on all workers.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from ..comm.base import Pending
from ..core.context import Context
from ..core.errors import UserError
from ..topology.base import Topology
from .shares import shares_of

_BLOCK = 1 << 16  # elements mixed at once
WIRES = {"": None, "bfloat16": torch.bfloat16}  # what the option `wire` of a method means


class RoundLinks(NamedTuple):
    """What one worker does in one round."""

    keeps: float  # the weight of its own vector
    sources: list[tuple[int, float]]  # whose vectors it mixes in, with their weights
    targets: list[int]  # to whom it sends its own


class Mixing:
    """The links of one worker.

    wire: the dtype on the wire (None: that of the vector). A narrower one costs precision but not the mean: every
        worker then computes x_i + sum_j W_ij (q(x_j) - q(x_i)), which moves as much into a worker as out of another.
    links: those of each round, where they are not those of the topology.
    weights: "size" conserves the mean weighted by the workers' shares, instead of the plain one (`weighted`).
    """

    def __init__(
        self,
        context: Context,
        topology: Topology,
        wire: torch.dtype | None = None,
        links: Callable[[int], RoundLinks] | None = None,
        weights: str = "uniform",
    ):
        self.context = context
        self.topology = topology.on(context.size)
        self.wire = wire
        self._links_of = links or self._of_topology
        self.weights = self._possible(weights)  # "size" or "uniform"
        self._shares = self.shares
        self._known: dict[int, RoundLinks] = {}
        self._inbox: list[torch.Tensor] = []
        self._outbox: torch.Tensor | None = None
        self._pending: Pending | None = None
        self._links = RoundLinks(1.0, [], [])
        self._sent = torch.empty(0)
        self._deferred_cost = (0, 0)

    @property
    def under_way(self) -> bool:
        return self._pending is not None

    @property
    def shares(self) -> list[float]:
        """The weights of the mean that a round conserves; empty where that is the plain one."""
        return shares_of(self.context, self.weights)

    def begin(self, message: torch.Tensor, *, round: int | None = None, copy: bool = False) -> None:
        """Send `message` to the neighbours of this round (the next one on the clock, if not named).

        It must not change before `end`, unless `copy` sends a copy of it.
        """
        assert self._pending is None, "a round is under way"
        comm, ledger = self.context.comm, self.context.comm.ledger
        self._links = links = self._links_of(self.context.clock.rounds if round is None else round)
        self._sent = sent = self._copied(message) if copy or self.wire is not None else message
        if self._inbox and (self._inbox[0].shape != sent.shape or self._inbox[0].dtype != sent.dtype):
            self._inbox = []
        while len(self._inbox) < len(links.sources):
            self._inbox.append(torch.empty_like(sent))
        incoming = {peer: into for (peer, _), into in zip(links.sources, self._inbox, strict=False)}
        before = ledger.messages, ledger.bytes
        self._pending = comm.exchange(dict.fromkeys(links.targets, sent), incoming)
        # A round is counted when it ends: one that a checkpoint cuts off is sent again and must count once.
        self._deferred_cost = ledger.messages - before[0], ledger.bytes - before[1]
        ledger.messages, ledger.bytes = before

    @torch.no_grad()
    def end(self, own: torch.Tensor, out: torch.Tensor, *, scale: float = 1.0, keep: float = 0.0) -> torch.Tensor:
        """out <- scale (W_ii own + sum_j W_ij what came from j) + keep out. `out` may be `own`."""
        assert self._pending is not None, "no round is under way"
        messages = self._pending.arrive()
        self.context.clock.rounds += 1
        self.context.comm.ledger.record(*self._deferred_cost)
        keeps, sources, _ = self._links
        narrow = self.wire is not None and self.wire != own.dtype
        own_weight = scale * (1.0 if narrow else keeps)
        terms = [(messages[peer], scale * weight) for peer, weight in sources]
        if narrow:
            terms.insert(0, (self._sent, scale * (keeps - 1.0)))
        # A cache-sized block at a time: every vector then crosses the memory bus once.
        for start in range(0, len(out), _BLOCK):
            block = slice(start, start + _BLOCK)
            target = out[block]
            if out is own:
                if own_weight + keep != 1.0:
                    target.mul_(own_weight + keep)
            elif keep == 0.0:
                torch.mul(own[block], own_weight, out=target)
            else:
                target.mul_(keep).add_(own[block], alpha=own_weight)
            for message, weight in terms:
                target.add_(message[block], alpha=weight)
        self._pending.release()
        self._pending = None
        return out

    def mix(self, vector: torch.Tensor, *, round: int | None = None) -> torch.Tensor:
        """vector <- W vector, in place."""
        self.begin(vector, round=round)
        return self.end(vector, vector)

    def drop(self) -> None:
        """Forget a round that is under way, as if it had not begun; all workers do it together."""
        if self._pending is not None:
            self._pending.arrive()
            self._pending.release()
            self._pending = None

    def _copied(self, message: torch.Tensor) -> torch.Tensor:
        dtype = self.wire or message.dtype
        if self._outbox is None or self._outbox.shape != message.shape or self._outbox.dtype != dtype:
            self._outbox = torch.empty_like(message, dtype=dtype)
        return self._outbox.copy_(message)

    def _possible(self, weights: str) -> str:
        """Along one-way links nothing comes back to balance: there, all count alike."""
        if weights == "size" and not self.topology.symmetric:
            if self.context.rank == 0 and shares_of(self.context):
                logging.getLogger("equipoise").warning(
                    "%r is directed: models count alike although shares differ; use an undirected graph, or --sync sgp",
                    self.topology,
                )
            return "uniform"
        return weights

    def _of_topology(self, round: int) -> RoundLinks:
        topology, rank = self.topology, self.context.rank
        first = round % topology.cycle if topology.cycle else round
        if self._shares != self.shares:  # blocks may be dealt out anew between epochs
            self._shares = self.shares
            self._known.clear()
        if first in self._known:
            return self._known[first]
        targets = [peer for peer, _ in topology.targets(first, rank)]
        found = RoundLinks(topology.keeps(first, rank), topology.neighbours(first, rank), targets)
        found = weighted(found, rank, self._shares)
        if topology.cycle:
            self._known[first] = found
        return found


def weighted(links: RoundLinks, rank: int, shares: list[float]) -> RoundLinks:
    """The links whose stationary distribution is pi = `shares`, from those of a symmetric W, after Metropolis and Hastings.

        W_ij <- W_ij min(1, pi_j / pi_i),   W_ii the rest

    Since pi_i W_ij = pi_j W_ji, pi W = pi: a round conserves sum_i pi_i x_i. No more and no other messages.
    """
    if not shares:
        return links
    sources = [(peer, weight * min(1.0, shares[peer] / shares[rank])) for peer, weight in links.sources]
    return RoundLinks(1.0 - sum(weight for _, weight in sources), sources, links.targets)


def gossip_cost(
    topology: Topology, elements: int, itemsize: int, rank: int, size: int, round: int, wire: str = ""
) -> tuple[int, int]:
    """Messages and bytes of worker `rank` in one round of gossip with vectors of `elements`."""
    count = len(topology.on(size).targets(round, rank))
    narrow = WIRES[wire]
    return count, count * elements * (itemsize if narrow is None else narrow.itemsize)


def agree(context: Context, topology: Topology, who: str, *, static: bool = False, push_sum: bool = False) -> Topology:
    """The topology over these workers, if it is valid and all of them mean the same one.

    `static` is for methods whose analysis needs one symmetric W for all rounds, with lambda < 1.
    """
    bound = topology.on(context.size)
    prints = context.comm.gather_objects(bound.fingerprint())
    for rank, other in enumerate(prints):
        if other != prints[0]:
            raise UserError(
                f"{who}: workers 0 and {rank} disagree on the graph: give all the same topology, seed and edge file"
            )
    bound.validate(push_sum=push_sum)
    if static:
        require_static(bound, who)
    return bound


def require_static(bound: Topology, who: str) -> None:
    """Refuse graphs that change from round to round, are directed, or never mix."""
    if bound.cycle != 1:
        raise UserError(
            f"{who} needs the same graph in every round, {bound!r} changes: use ring, torus, hypercube or "
            "another static topology, or --sync d-psgd"
        )
    if not bound.symmetric:
        raise UserError(
            f"{who} needs symmetric weights, {bound!r} is directed: use ring, torus, hypercube or another "
            "undirected topology, or --sync sgp"
        )
    if bound.rate() > 1.0 - 1e-12:
        raise UserError(
            f"{who}: {bound!r} over {bound.size} workers has lambda = 1, so disagreement never fades: use lazy=True"
        )


def made_lazy(topology: Topology, why: str, context: Context) -> Topology:
    """The same graph with (I + W) / 2, and one line that says so."""
    if context.rank == 0:
        logging.getLogger("equipoise").warning("%s; mixing with (I + W) / 2 instead (lazy=True says so)", why)
    return dataclasses.replace(topology, lazy=True)


def mixing_gap(topology: Topology, shares: list[float] | None = None) -> float:
    """1 - lambda of a bound topology: per round, on average over a period where the graph changes.

    With shares, of the weighted matrices, in the norm in which a round cannot raise disagreement: that of
    P^(1/2) W P^(-1/2), P = diag(pi), which is symmetric.
    """
    if shares:
        root, rounds = np.sqrt(shares), topology.cycle or 64
        product = np.eye(topology.size)
        for round in range(rounds):
            product = symmetrised(topology.matrix(round), shares) @ product
        return 1.0 - float(np.linalg.norm(product - np.outer(root, root), 2)) ** (1.0 / rounds)
    if topology.cycle == 1:
        return topology.spectral_gap()
    rounds = topology.cycle or 64
    return 1.0 - topology.contraction(rounds) ** (1.0 / rounds)


def symmetrised(matrix: np.ndarray, shares: list[float]) -> np.ndarray:
    """P^(1/2) W P^(-1/2) of the weighted matrix that belongs to a symmetric one."""
    pi = np.asarray(shares)
    flow = matrix * np.minimum.outer(pi, pi)  # pi_i W_ij
    np.fill_diagonal(flow, 0.0)
    np.fill_diagonal(flow, pi - flow.sum(1))
    return flow / np.sqrt(np.outer(pi, pi))
