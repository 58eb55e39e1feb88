"""One round of gossip, x_i <- sum_j W_ij x_j, shared by the decentralised methods.

One message per neighbour, sent directly from the vector (no packing), received in buffers that are allocated once.
`begin` and `end` are separate so that communication can overlap with computation; a round counts, on the clock and in
the ledger, when it ends. A method calls `agree` first: it ensures that all workers use the same valid graph. Through a
wire, messages are codes of distances to replicas (see `wire.replicas`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..comm.base import Pending
from ..comm.ledger import Deferred
from ..core.context import Context
from ..core.errors import UserError
from ..core.vector import ModelSize
from ..topology.analysis import Key
from ..topology.base import Topology
from ..wire.base import pieces_of
from ..wire.replicas import ReplicaChannel
from .shares import shares_of
from .wide import ITEMSIZE

_BLOCK = 1 << 18  # elements mixed at once: smaller blocks cost more calls than they save memory traffic


class RoundLinks(NamedTuple):
    """The links of one worker in one round."""

    keeps: float  # the weight of its own vector
    sources: list[tuple[int, float]]  # the ranks it receives from, with their weights
    targets: list[int]  # the ranks it sends to


class Mixing:
    """One worker's side of the rounds, one round at a time.

    channel: replicas, where messages go through a wire. Every worker then computes
        x_i + gamma sum_j W_ij (xh_j - xh_i), whose terms cancel in the sum over workers.
    links: the links of each round, if they are not those of the topology.
    weights: "size" conserves the mean weighted by the workers' shares, instead of the plain mean (see `weighted`).
    stretch: s, where a round mixes with I + s (W - I) instead of W.
    """

    def __init__(
        self,
        context: Context,
        topology: Topology,
        channel: ReplicaChannel | None = None,
        links: Callable[[int], RoundLinks] | None = None,
        weights: str = "uniform",
        stretch: float = 1.0,
    ):
        self.context = context
        self.topology = topology.on(context.size)
        self.channel = channel
        self._links_of = links or self._topology_links
        self._stretch = stretch
        self.weights = self._supported(weights)  # "size" or "uniform"
        self._cached_shares = self.shares
        self._cache: dict[int, RoundLinks] = {}  # links by round, valid for `_cached_shares`
        self._inbox: list[torch.Tensor] = []
        self._outbox: torch.Tensor | None = None
        self._pending: Pending | None = None
        self._links = RoundLinks(1.0, [], [])
        self._cost = Deferred()

    @property
    def in_flight(self) -> bool:
        return self._pending is not None

    @property
    def shares(self) -> list[float]:
        """The weights of the mean that a round conserves; empty for the plain mean."""
        return shares_of(self.context, self.weights)

    def links(self, round: int) -> RoundLinks:
        """Those of this worker in a round."""
        return self._links_of(round)

    def begin(self, message: torch.Tensor, *, round: int | None = None, copy: bool = False) -> None:
        """Send `message` to the neighbours of `round` (by default the next one on the clock).

        The message must not change before `end`, unless `copy` sends a copy of it.
        """
        assert self._pending is None, "a round is in flight"
        comm = self.context.comm
        self._links = links = self._links_of(self.context.clock.rounds if round is None else round)
        if self.channel is not None:
            sent = self.channel.encode(message)
        else:
            sent = self._copied(message) if copy and not comm.copies(message, links.targets) else message
        if self._inbox and (self._inbox[0].shape != sent.shape or self._inbox[0].dtype != sent.dtype):
            self._inbox = []
        while len(self._inbox) < len(links.sources):
            self._inbox.append(torch.empty_like(sent))
        incoming = {peer: into for (peer, _), into in zip(links.sources, self._inbox, strict=False)}
        self._cost = Deferred()
        with comm.ledger.deferred(self._cost):
            self._pending = comm.exchange(dict.fromkeys(links.targets, sent), incoming)

    @torch.no_grad()
    def end(self, own: torch.Tensor, out: torch.Tensor, *, scale: float = 1.0, keep: float = 0.0) -> torch.Tensor:
        """out <- scale (W_ii own + sum_j W_ij m_j) + keep out, m_j the message of rank j. `out` may be `own`."""
        messages = self._arrived()
        keeps, sources, _ = self._links
        if self.channel is None:
            own_weight = scale * keeps
            terms = [(messages[peer], scale * weight) for peer, weight in sources]
        else:
            own_weight, step = scale, scale * self.channel.gamma
            replica, replicas = self.channel.advance({peer: messages[peer] for peer, _ in sources})
            terms = [(replica, step * (keeps - 1.0))]
            terms += [(replicas[peer], step * weight) for peer, weight in sources]
        # One cache-sized block at a time, so that every vector is read from memory once.
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
        self._release()
        return out

    def end_displacement(self, own: torch.Tensor, out: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        """out <- out + scale sum_j W_ij (m_j - own), the displacement by this round. `out` may be wider than `own`."""
        for block, displacement in self.displacements(own, out.dtype, scale=scale):
            out[block].add_(displacement)
        return out

    @torch.no_grad()
    def displacements(
        self, own: torch.Tensor, dtype: torch.dtype, *, scale: float = 1.0
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """scale sum_j W_ij (m_j - own), one cache-sized block after another, in memory that the next block overwrites.

        Differences of two workers cancel exactly, whatever the precision of `own`: rounding leaves the sum over all
        workers alone, as it does not in W own - own. Of `own`, only blocks that were given may change meanwhile.
        """
        messages = self._arrived()
        sources, step, reference = self._links.sources, scale, own
        if self.channel is not None:
            step = scale * self.channel.gamma
            reference, messages = self.channel.advance({peer: messages[peer] for peer, _ in sources})
        total, scratch = (torch.empty(min(_BLOCK, len(own)), dtype=dtype, device=own.device) for _ in range(2))
        for start in range(0, len(own), _BLOCK):
            block = slice(start, min(start + _BLOCK, len(own)))
            displacement, difference = total[: block.stop - start].zero_(), scratch[: block.stop - start]
            for peer, weight in sources:
                _subtract(messages[peer][block], reference[block], difference)
                displacement.add_(difference, alpha=step * weight)
            yield block, displacement
        self._release()

    def _arrived(self) -> Mapping[int, torch.Tensor]:
        """The messages of the round in flight, which now counts."""
        assert self._pending is not None, "no round is in flight"
        messages = self._pending.arrive()
        self.context.clock.rounds += 1
        self.context.comm.ledger.record(self._cost.messages, self._cost.bytes)
        return messages

    def _release(self) -> None:
        assert self._pending is not None
        self._pending.release()
        self._pending = None

    def mix(self, vector: torch.Tensor, *, round: int | None = None) -> torch.Tensor:
        """vector <- W vector, in place."""
        self.begin(vector, round=round)
        return self.end(vector, vector)

    def agreed_on(self, vector: torch.Tensor) -> None:
        """All workers hold this vector, by other means than a round: replicas of the next one begin there."""
        if self.channel is not None:
            sources = self._links_of(self.context.clock.rounds).sources if self.channel.tracks else []
            self.channel.begin_at(vector, [peer for peer, _ in sources])

    def drop(self) -> None:
        """Discard a round in flight, as if it had not begun; all workers must do so together."""
        if self._pending is not None:
            self._pending.arrive()
            self._release()

    def _copied(self, message: torch.Tensor) -> torch.Tensor:
        if self._outbox is None or self._outbox.shape != message.shape or self._outbox.dtype != message.dtype:
            self._outbox = torch.empty_like(message)
        return self._outbox.copy_(message)

    def _supported(self, weights: str) -> str:
        """`weighted` needs links in both directions: on a directed graph all workers count alike."""
        if weights == "size" and not self.topology.symmetric:
            if self.context.rank == 0 and shares_of(self.context):
                logging.getLogger("equipoise").warning(
                    "%r is directed: models count alike although shares differ; use an undirected graph, or SGP",
                    self.topology,
                )
            return "uniform"
        return weights

    def _topology_links(self, round: int) -> RoundLinks:
        topology, rank = self.topology, self.context.rank
        phase = round % topology.cycle if topology.cycle else round
        if self._cached_shares != self.shares:  # examples may be redistributed between epochs
            self._cached_shares = self.shares
            self._cache.clear()
        if phase in self._cache:
            return self._cache[phase]
        targets = [peer for peer, _ in topology.targets(phase, rank)]
        links = RoundLinks(topology.keeps(phase, rank), topology.neighbours(phase, rank), targets)
        links = stretched(weighted(links, rank, self._cached_shares), self._stretch)
        if topology.cycle:
            self._cache[phase] = links
        return links


def _subtract(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """out <- a - b in the precision of `out`, which torch.sub would round to that of a and b."""
    if a.dtype == out.dtype:
        torch.sub(a, b, out=out)
    else:
        out.copy_(a).sub_(b)


def weighted(links: RoundLinks, rank: int, shares: list[float]) -> RoundLinks:
    """Metropolis-Hastings weights: from a symmetric W the links whose stationary distribution is pi = `shares`.

        W_ij <- W_ij min(1, pi_j / pi_i),   W_ii <- 1 - the sum of these

    Since pi_i W_ij = pi_j W_ji, pi W = pi: a round conserves sum_i pi_i x_i. The messages are the same.
    """
    if not shares:
        return links
    sources = [(peer, weight * min(1.0, shares[peer] / shares[rank])) for peer, weight in links.sources]
    return RoundLinks(1.0 - sum(weight for _, weight in sources), sources, links.targets)


def stretched(links: RoundLinks, stretch: float) -> RoundLinks:
    """The links of I + s (W - I): the same messages, rows still sum to 1."""
    if stretch == 1.0:
        return links
    sources = [(peer, stretch * weight) for peer, weight in links.sources]
    return RoundLinks(1.0 - sum(weight for _, weight in sources), sources, links.targets)


def gossip_cost(
    topology: Topology,
    model: ModelSize,
    rank: int,
    size: int,
    round: int,
    *,
    rounds: int = 1,
    vectors: int = 1,
    extra: int = 0,
) -> tuple[int, int]:
    """Messages and bytes that `rank` sends in rounds of gossip: so many vectors and `extra` numbers to each."""
    graph = topology.on(size)
    count = sum(len(graph.targets(number, rank)) for number in range(round, round + rounds))
    return count, count * message_bytes(model, vectors, extra)


def message_bytes(model: ModelSize, vectors: int = 1, extra: int = 0) -> int:
    """Bytes of a message of so many vectors, and `extra` numbers that no wire compresses.

    A vector beside the model is a tracker, at least float32, and the model travels as wide as it does.
    """
    if model.wire is None:
        itemsize = model.itemsize if vectors == 1 else max(model.itemsize, ITEMSIZE)
        return (vectors * model.elements + extra) * itemsize
    return model.wire.message_bytes(vectors * model.elements, pieces_of(model.shapes * vectors))


def agree(context: Context, topology: Topology, who: str, *, static: bool = False, push_sum: bool = False) -> Topology:
    """The topology bound to the world size, if it is valid and the same on all workers.

    `static` is for methods whose analysis needs one symmetric W for all rounds, with lambda < 1.
    """
    bound = topology.on(context.size)
    fingerprints = context.comm.gather_objects(bound.fingerprint())
    for rank, fingerprint in enumerate(fingerprints):
        if fingerprint != fingerprints[0]:
            raise UserError(
                f"{who}: workers 0 and {rank} disagree on the graph: give all the same topology, seed and edge file"
            )
    bound.validate(push_sum=push_sum)
    if static:
        require_static(bound, who)
    return bound


def require_static(bound: Topology, who: str, *, mixes: bool = True) -> None:
    """Refuse graphs that change from round to round, are directed, or (unless a method repairs that) do not mix."""
    if bound.drop:
        raise UserError(
            f"{who} needs the same graph in every round, and with drop = {bound.drop:g} links are down in some: omit "
            "drop, or use d-psgd, dsgt, k-gt or detag"
        )
    if bound.cycle != 1:
        raise UserError(
            f"{who} needs the same graph in every round, {bound!r} changes: use ring, torus, hypercube or "
            "another static topology, or DPSGD (--sync d-psgd)"
        )
    if not bound.symmetric:
        raise UserError(
            f"{who} needs symmetric weights, {bound!r} is directed: use ring, torus, hypercube or another "
            "undirected topology, or SGP (--sync sgp)"
        )
    if mixes and bound.rate() > 1.0 - 1e-12:
        raise UserError(
            f"{who}: {bound!r} over {bound.size} workers has lambda = 1, so it never reaches consensus: use lazy=True"
        )


def require_undirected(bound: Topology, who: str) -> None:
    """Refuse graphs with one-way links."""
    if not bound.symmetric:
        raise UserError(f"{who} needs an undirected graph, {bound!r} is directed: use ring, torus or hypercube")


def made_lazy(topology: Topology, why: str, context: Context) -> Topology:
    """The same graph with (I + W) / 2; rank 0 logs a warning."""
    if context.rank == 0:
        logging.getLogger("equipoise").warning(
            "%s; mixing with (I + W) / 2 instead (pass lazy=True to choose this)", why
        )
    return dataclasses.replace(topology, lazy=True)


def mixing_gap(topology: Topology, shares: list[float] | None = None) -> float:
    """The spectral gap 1 - lambda of a bound topology: per round, averaged over a cycle if the graph changes.

    With shares, that of the weighted matrices, from the symmetric P^(1/2) W P^(-1/2) with P = diag(pi): in this norm a
    round cannot increase disagreement.
    """
    if shares:
        return _weighted_gap(Key(topology.identity, topology), tuple(shares))
    if topology.cycle == 1:
        return topology.spectral_gap()
    rounds = topology.cycle or 64
    return 1.0 - float(topology.contraction(rounds) ** (1.0 / rounds))


@lru_cache(maxsize=16)  # every virtual worker asks at every evaluation
def _weighted_gap(key: Key, shares: tuple[float, ...]) -> float:
    topology = key.topology
    root, rounds = np.sqrt(shares), topology.cycle or 64
    product = np.eye(topology.size)
    for round in range(rounds):
        product = symmetrised(topology.matrix(round), shares) @ product
    return 1.0 - float(np.linalg.norm(product - np.outer(root, root), 2) ** (1.0 / rounds))


def symmetrised(matrix: npt.NDArray[np.float64], shares: Sequence[float]) -> npt.NDArray[np.float64]:
    """P^(1/2) W P^(-1/2), where W is the weighted matrix made from the symmetric `matrix`."""
    pi = np.asarray(shares)
    flow = matrix * np.minimum.outer(pi, pi)  # pi_i W_ij
    np.fill_diagonal(flow, 0.0)
    np.fill_diagonal(flow, pi - flow.sum(1))
    return np.asarray(flow / np.sqrt(np.outer(pi, pi)))
