from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch

from ..core.method import Metadata, option
from ..core.vector import ModelSize
from ..topology.analysis import Key
from ..topology.base import Topology
from ..topology.ring import Ring
from ..topology.tree import shallowest_tree
from .base import Needs
from .gossip import OnGraph
from .mixing import require_static


@dataclass
class RelaySGD(OnGraph):
    """Models are relayed along a tree: every worker averages everybody's, older the farther they come from.

        x_i <- x_i - a g_i(x_i)
        to each neighbour j:   m_ij = x_i + sum over the other neighbours k of m_ki from the round before
        x_i <- (x_i + sum_j m_ji) / n

    Every model enters every average with weight 1 / n, so a constant step reaches the optimum of the mean however much
    the workers' data differ (with a round at every step; local steps bring a bias proportional to the step). What is
    late slows it down: it travels as if with the step a / (1 + delay), so use a larger a on deep trees; `delay` is the
    number of rounds by which models are late on average, 1.75 on a path of 8. The tree is the breadth-first one from
    the centre of the topology's graph; a path or a star is its own. The weights of the topology are not used.
    A neighbour that has not spoken yet stands for as many copies of the common start as there are workers behind
    it: what the paper's counts and x^0 come to, without sending counts. Stores the last message of each neighbour,
    sends one vector to each neighbour in the tree per round. Any update that is linear in the gradients keeps it
    exact, so momentum does; Adam scales each worker's gradient on its own.
    Where shares pi_i of the examples differ, g_i is taken times N pi_i, so that every example counts the same.
    Reference: Vogels et al., RelaySum for Decentralized Deep Learning on Heterogeneous Data, NeurIPS 2021.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="relay", help="models relayed along a spanning tree; exact on unequal data", cites=("vogels2021relaysum",)
    )

    STATE: ClassVar[tuple[str, ...]] = ("inbox",)
    HEALTH: ClassVar[tuple[str, ...]] = ("delay",)

    topology: Topology = option(Ring(), help="whose spanning tree is used; the same undirected graph in every round")

    def needs(self) -> Needs:
        return Needs(static_graph=True)

    def init_state(self) -> None:
        graph = self.agreed_graph()
        tree = spanning_tree(Key(graph.identity, graph))
        self.peers = list(tree.links[self.context.rank])
        self.behind = list(tree.links[self.context.rank].values())
        self.delay = tree.delay
        self.inbox: torch.Tensor | None = None  # a row a neighbour

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        if self.inbox is None:  # not in `init_state`: a model may be loaded between that and the first step
            self.inbox = torch.outer(x.new_tensor(self.behind), x)
        self.weigh(g)

    def after_step(self, x: torch.Tensor) -> None:
        assert self.inbox is not None
        known = self.inbox.sum(0).add_(x)
        outgoing = {peer: known - heard for peer, heard in zip(self.peers, self.inbox, strict=True)}
        self.context.comm.exchange(outgoing, dict(zip(self.peers, self.inbox, strict=True))).wait()
        self.context.clock.rounds += 1
        x.add_(self.inbox.sum(0)).div_(self.context.size)

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        graph = self.topology.on(size)
        messages = len(spanning_tree(Key(graph.identity, graph)).links[rank]) if due else 0
        return messages, messages * model.elements * model.itemsize


@dataclass(frozen=True)
class Relay:
    links: tuple[dict[int, int], ...]  # of each worker: neighbour -> number of workers reached through it
    delay: float  # rounds by which a model is late, averaged over all pairs of workers


@lru_cache(maxsize=64)
def spanning_tree(key: Key) -> Relay:
    """The shallowest breadth-first tree of a bound topology; of several, the one with the lowest root."""
    graph = key.topology
    require_static(graph, "RelaySGD")
    peers = [sorted(peer for peer, _ in graph.neighbours(0, rank)) for rank in range(graph.size)]
    order, parent, _ = shallowest_tree(peers)
    links: list[dict[int, int]] = [{} for _ in peers]
    below, late = [1] * graph.size, -graph.size * (graph.size - 1)  # a neighbour's model is not late
    for rank in reversed(order[1:]):
        here, there = below[rank], graph.size - below[rank]
        links[rank][parent[rank]], links[parent[rank]][rank] = there, here
        below[parent[rank]] += here
        late += 2 * here * there  # so many pairs of workers have this link between them
    return Relay(tuple(dict(sorted(each.items())) for each in links), late / graph.size**2)
