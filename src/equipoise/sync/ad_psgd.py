from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch

from ..comm.base import Pending
from ..core.method import Metadata, option
from ..core.vector import ModelSize
from ..topology.analysis import WINDOW, Key
from ..topology.base import Topology
from ..topology.ring import Ring
from .base import Needs
from .gossip import OnGraph
from .mixing import RoundLinks, agree, gossip_cost, require_undirected
from .shares import shares_of


@dataclass
class ADPSGD(OnGraph):
    """Pairs of neighbours average models that are one round stale, in the background of computation, after AD-PSGD.

        at a round:        worker i has a partner j; both send their models, s_i and s_j, and continue
        at the next one:   x_i <- x_i + (s_j - s_i) / 2,   x_j <- x_j + (s_i - s_j) / 2

    The two corrections are the same numbers with opposite signs: only the optimizers' steps move the mean. Where shares
    differ 1/2 becomes pi_j / (pi_i + pi_j), and the mean is the weighted one.
    As in AD-PSGD: pairwise averages with a random neighbour; they happen in the background, with stale models;
    gradients are taken at a model that does not contain the average yet.
    Unlike AD-PSGD, where a worker averages whenever it is ready and fast workers take more steps: here all workers take
    equally many steps, the pairs are a random maximal matching of the topology's edges drawn from (seed, round), and a
    worker waits for a straggler that is more than a round behind. In return there are no active and passive roles, no
    graph can deadlock, and runs are reproducible. With plain SGD at a period of 1 the equations are those of D-PSGD
    with combine = "before" over these matchings: the same bias, proportional to the step.
    Stores two vectors (its snapshot and the partner's), sends one per round, or none without a partner. The weights of
    the topology are not used. Any optimizer may take the steps.
    Reference: Lian et al., Asynchronous Decentralized Parallel Stochastic Gradient Descent, ICML 2018.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="ad-psgd",
        help="pairs average in the background with models one round stale",
        cites=("lian2018asynchronous",),
    )

    STATE: ClassVar[tuple[str, ...]] = ("snapshot", "arrived")
    in_flight: ClassVar[tuple[str, ...]] = ("arrived",)
    draws_links: ClassVar[bool] = True
    HEALTH: ClassVar[tuple[str, ...]] = ("spectral_gap",)

    topology: Topology = option(Ring(), help="whose edges are paired; undirected")
    seed: int = option(0, help="of the pairs; the same on all workers", least=0)

    def needs(self) -> Needs:
        return Needs(undirected=True)

    def init_state(self) -> None:
        self.pairs = agree(self.context, Pairs(self.topology, self.seed), type(self).__name__)
        self.snapshot = torch.zeros_like(self.flat.x)
        wire = self.context.wire
        self.channel = wire.messages("snapshots") if wire is not None else None
        self._inbox = torch.zeros_like(self.snapshot)
        self._sender = -1  # the partner whose message is in flight
        self._arrived: torch.Tensor | None = None  # None: no partner
        self._pending: Pending | None = None

    def takes_wires(self, size: int) -> tuple[str, str]:
        return "casts", "its pairs change from round to round, so receivers have no replica of a sender"

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None: ...

    def after_step(self, x: torch.Tensor) -> None:
        clock, comm = self.context.clock, self.context.comm
        self._wait()
        if self._arrived is not None:
            x.add_(self._arrived.sub_(self.snapshot), alpha=self._weight(clock.rounds - 1))
        self.snapshot.copy_(x)
        partner = [peer for peer, _ in self.pairs.neighbours(clock.rounds, comm.rank)]
        clock.rounds += 1
        self._arrived = self._inbox if partner else None
        if self.channel is None:
            self._pending = comm.exchange(dict.fromkeys(partner, self.snapshot), dict.fromkeys(partner, self._inbox))
            return
        # Both ends use the decoded distances to the initial model, so that the corrections still cancel.
        self._code, self._sender = self.channel.next_message(), partner[0] if partner else -1
        initial = self.channel.wire.initial
        assert initial is not None
        message = self.channel.encode(x - initial)
        self.snapshot.copy_(self.channel.decode(message, comm.rank))
        self._pending = comm.exchange(dict.fromkeys(partner, message), dict.fromkeys(partner, self._code))

    def _weight(self, round: int) -> float:
        """The weight of this round's partner in the mean of the two."""
        shares = shares_of(self.context, self.weights)
        (partner, half), *_ = self.pairs.neighbours(round, self.context.rank)
        return shares[partner] / (shares[partner] + shares[self.context.rank]) if shares else half

    def links(self, round: int) -> RoundLinks:
        peers = [peer for peer, _ in self.pairs.neighbours(round, self.context.rank)]
        return RoundLinks(1.0, [(peer, 0.0) for peer in peers], peers)

    def mean_shares(self) -> list[float]:
        return shares_of(self.context, self.weights)

    def restart(self, x: torch.Tensor, common: torch.Tensor, *, replaced: bool) -> None:
        self._wait()
        self._arrived = None  # on all workers: the two corrections of a pair are dropped together

    def finish(self) -> None:
        self._wait()

    def _wait(self) -> None:
        """Wait for the snapshot in flight."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
            if self.channel is not None and self._sender >= 0:
                self._inbox.copy_(self.channel.decode(self._code, self._sender))

    @property
    def arrived(self) -> torch.Tensor | None:
        """The partner's snapshot, None without a partner. A checkpoint waits for it: losing it would move the mean."""
        with self.context.comm.uncounted():
            self._wait()
        return self._arrived

    @arrived.setter
    def arrived(self, value: torch.Tensor | None) -> None:
        with self.context.comm.uncounted():
            self._wait()
        self._arrived = value

    @property
    def spectral_gap(self) -> float:
        """1 - ||E[W^T W] - 11^T/n||^(1/2), the mean over the first rounds; W^T W = W for pairs."""
        mean = sum(self.pairs.matrix(round) for round in range(WINDOW)) / WINDOW
        shares = shares_of(self.context, self.weights)
        if not shares:
            return 1.0 - float(np.linalg.norm(mean - 1.0 / self.pairs.size, 2) ** 0.5)
        pi = np.asarray(shares)
        # P^(1/2) W P^(-1/2), P = diag(pi), which is symmetric.
        mean *= 2.0 * np.sqrt(np.outer(pi, pi)) / np.add.outer(pi, pi)
        np.fill_diagonal(mean, 0.0)
        np.fill_diagonal(mean, 1.0 - mean @ np.sqrt(pi) / np.sqrt(pi))
        return 1.0 - float(np.linalg.norm(mean - np.sqrt(np.outer(pi, pi)), 2) ** 0.5)

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        pairs = Pairs(self.topology, self.seed)
        return gossip_cost(pairs, model, rank, size, round) if due else (0, 0)


@dataclass
class Pairs(Topology):
    """A random maximal matching of the edges of another graph, drawn afresh each round; both ends have weight 1/2."""

    base: Topology = option(Ring(), help="whose edges are paired; undirected")
    seed: int = option(0, help="of the pairs; the same on all workers", least=0)

    @property
    def content(self) -> str:
        return self.base.content

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        partner = _partners(Key(self.identity, self), round)[rank]
        return [(partner, 0.5)] if partner != rank else []

    def period_length(self, size: int) -> int:
        return 1 if size == 2 and not self.base.drop else 0


@lru_cache(maxsize=256)
def _partners(key: Key, round: int) -> tuple[int, ...]:
    """The partner of each rank in this round; its own rank for a worker without one."""
    pairs = key.topology
    assert isinstance(pairs, Pairs)
    graph = _bound(key)
    edges = [(rank, peer) for rank in range(graph.size) for peer, _ in graph.neighbours(round, rank) if rank < peer]
    partners = list(range(graph.size))
    for index in np.random.default_rng([pairs.seed, round]).permutation(len(edges)):
        a, b = edges[index]
        if partners[a] == a and partners[b] == b:
            partners[a], partners[b] = b, a
    return tuple(partners)


@lru_cache(maxsize=16)
def _bound(key: Key) -> Topology:
    """The graph whose edges are paired."""
    assert isinstance(key.topology, Pairs)
    graph = key.topology.base.on(key.topology.size)
    require_undirected(graph, ADPSGD.__name__)
    return graph
