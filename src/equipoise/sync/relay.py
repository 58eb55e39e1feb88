from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch

from ..core.method import Metadata, option
from ..core.vector import ModelSize
from ..topology.analysis import Key
from ..topology.base import Topology
from ..topology.ring import Ring
from ..topology.tree import shallowest_tree
from ..wire.messages import MessageChannel
from .base import Needs
from .gossip import OnGraph
from .mixing import RoundLinks, message_bytes, require_static


@dataclass
class RelaySGD(OnGraph):
    """Models are relayed along a spanning tree: each average contains every worker's model, staler the farther away.

        x_i <- x_i - a g_i(x_i)
        to each neighbour j:   m_ij = x_i + sum over the other neighbours k of m_ki from the round before
        x_i <- (x_i + sum_j m_ji) / n

    Every model enters every average with weight 1 / n, so a constant step reaches the optimum of the mean on non-IID
    data (with a round at every step; local steps bring a bias proportional to the step). Staleness slows it down: it
    converges as if with the step a / (1 + delay), so use a larger a on deep trees. `delay` is the staleness of models
    in rounds, averaged over pairs of workers: 1.75 on a path of 8. The tree is the breadth-first one from the centre
    of the topology's graph; a path or a star is its own spanning tree. The weights of the topology are not used.
    Until the first message of a neighbour arrives, it counts as one copy of the initial model for each worker behind
    it: equal to the paper's counts and x^0, without sending counts. Stores the last message of each neighbour and
    sends one vector to each neighbour in the tree per round. Any update that is linear in the gradients, such as
    momentum, keeps it exact; Adam scales each worker's gradient separately and does not.
    Where shares pi_i of the examples differ, g_i is multiplied by N pi_i, so that every example counts the same.
    Reference: Vogels et al., RelaySum for Decentralized Deep Learning on Heterogeneous Data, NeurIPS 2021.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="relay", help="models relayed along a spanning tree; exact on non-IID data", cites=("vogels2021relaysum",)
    )

    STATE: ClassVar[tuple[str, ...]] = ("inbox", "outbox")
    HEALTH: ClassVar[tuple[str, ...]] = ("delay",)

    topology: Topology = option(Ring(), help="whose spanning tree is used; the same undirected graph in every round")

    def needs(self) -> Needs:
        return Needs(static_graph=True)

    def takes_wires(self, size: int) -> tuple[str, str]:
        return "dense", "an average contains every message undamped, also what one of them leaves out"

    def init_state(self) -> None:
        graph = self.agreed_graph()
        tree = spanning_tree(Key(graph.identity, graph))
        self.peers = list(tree.links[self.context.rank])
        self.workers_behind = list(tree.links[self.context.rank].values())
        self.delay = tree.delay
        self.inbox: torch.Tensor | None = None  # the last message of each neighbour, one per row
        self.channel = self.context.wire.messages("relay") if self.context.wire is not None else None
        self.outbox: torch.Tensor | None = None  # through a wire: what each neighbour holds of this worker's messages

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        if self.inbox is None:  # not in `init_state`: a model may be loaded between that and the first step
            self._begin(x)
        self.weigh(g)

    def _begin(self, x: torch.Tensor) -> None:
        """All workers hold x: each neighbour's message is a copy of it for each worker behind."""
        self.inbox = torch.outer(x.new_tensor(self.workers_behind), x)
        if self.channel is not None:
            self.outbox = torch.outer(x.new_tensor([self.context.size - n for n in self.workers_behind]), x)

    def links(self, round: int) -> RoundLinks:
        return RoundLinks(1.0, [(peer, 0.0) for peer in self.peers], self.peers)

    def sent_with_model(self) -> dict[str, Any]:
        return {"inbox": self.inbox}

    def restart(self, x: torch.Tensor, common: torch.Tensor, *, replaced: bool) -> None:
        self._begin(x.copy_(common))  # messages contain the models of several workers, which cannot be told apart

    def after_step(self, x: torch.Tensor) -> None:
        assert self.inbox is not None
        total = self.inbox.sum(0).add_(x)
        outgoing = {peer: total - received for peer, received in zip(self.peers, self.inbox, strict=True)}
        if self.channel is None:
            self.context.comm.exchange(outgoing, dict(zip(self.peers, self.inbox, strict=True))).wait()
        else:
            self._exchange_changes(self.channel, outgoing)
        self.context.clock.rounds += 1
        x.add_(self.inbox.sum(0)).div_(self.context.size)

    def _exchange_changes(self, channel: MessageChannel, outgoing: dict[int, torch.Tensor]) -> None:
        """To each neighbour the change of its message; both ends advance by what is decoded."""
        assert self.inbox is not None
        assert self.outbox is not None
        empty = channel.next_message()
        received = {peer: torch.empty_like(empty) for peer in self.peers}
        sent = {peer: channel.encode(outgoing[peer] - held) for peer, held in zip(self.peers, self.outbox, strict=True)}
        self.context.comm.exchange(sent, received).wait()
        for number, peer in enumerate(self.peers):
            self.outbox[number].add_(channel.decode(sent[peer], self.context.rank))
            self.inbox[number].add_(channel.decode(received[peer], peer))

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        graph = self.topology.on(size)
        messages = len(spanning_tree(Key(graph.identity, graph)).links[rank]) if due else 0
        return messages, messages * message_bytes(model)


@dataclass(frozen=True)
class RelayTree:
    links: tuple[dict[int, int], ...]  # of each rank: neighbour -> number of workers reached through it
    delay: float  # staleness of a model in rounds, averaged over all pairs of workers


@lru_cache(maxsize=64)
def spanning_tree(key: Key) -> RelayTree:
    """The shallowest breadth-first tree of a bound topology; among equals, the one with the lowest root."""
    graph = key.topology
    size = graph.size
    require_static(graph, RelaySGD.__name__)
    tree = shallowest_tree([sorted(peer for peer, _ in graph.neighbours(0, rank)) for rank in range(size)])
    sizes = tree.subtree_sizes()
    links: list[dict[int, int]] = [{} for _ in range(size)]
    staleness = -size * (size - 1)  # the model of a direct neighbour is current
    for rank in tree.order[1:]:
        parent, below = tree.parent[rank], sizes[rank]
        links[rank][parent], links[parent][rank] = size - below, below
        staleness += 2 * below * (size - below)  # the pairs of workers that this link separates
    return RelayTree(tuple(dict(sorted(each.items())) for each in links), staleness / size**2)
