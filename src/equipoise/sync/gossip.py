"""What decentralised methods share: a graph that is the same on all workers, rounds of gossip, cost, spectral gap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ..core.errors import UserError
from ..core.method import option
from ..core.vector import ModelSize
from ..topology.base import Topology
from ..topology.ring import Ring
from ..wire.replicas import ReplicaChannel, consensus_step, relative_error
from .base import Sync
from .mixing import Mixing, RoundLinks, agree, gossip_cost, mixing_gap, require_static, require_undirected
from .shares import BY, HELP, weigh_gradient

STATIC = "who talks to whom; the same symmetric graph in every round"


@dataclass
class OnGraph(Sync):
    """A method on the edges of a topology."""

    topology: Topology = option(Ring(), help="who talks to whom")
    weights: str = option("size", help=HELP, choices=BY)

    def check_graph(self, size: int) -> None:
        """Refuse a topology that does not suit this method on so many workers."""
        bound, needs = self.topology.on(size), self.needs()
        bound.validate(push_sum=needs.push_sum)
        if needs.static_graph and size > 1:
            self._require_static(bound)
        if needs.undirected and size > 1:
            require_undirected(bound, type(self).__name__)

    def agreed_graph(self) -> Topology:
        """The topology bound to the world size, if it suits this method and is the same on all workers."""
        needs = self.needs()
        graph = agree(self.context, self.topology, type(self).__name__, push_sum=needs.push_sum)
        if needs.static_graph:
            self._require_static(graph)
        return graph

    def _require_static(self, bound: Topology) -> None:
        needs = self.needs()
        graph = bound.without_drops() if needs.drops else bound
        require_static(graph, type(self).__name__, mixes=not needs.repairs_graph)

    def weigh(self, g: torch.Tensor | None = None) -> None:
        """g <- N pi_i g where shares of the examples differ; without `g`, the gradients in the parameters."""
        weigh_gradient(self.context, self.weights, g)


@dataclass
class Gossip(OnGraph):
    """A method whose round is x_i <- sum_j W_ij x_j, or several of them. Final here: the graph, cost, spectral gap.

    A method fills `init_state`, which makes `self.mixing`, and the two hooks.
    """

    HEALTH: ClassVar[tuple[str, ...]] = ("spectral_gap",)
    vectors: ClassVar[int] = 1  # of the size of the model, sent to each neighbour per round

    gamma: float | None = option(
        None, help="consensus step size through a wire; by default from what the wire leaves out", above=0, most=1
    )

    def start_gossip(
        self,
        graph: Topology,
        *,
        weighted: bool,
        links: Callable[[int], RoundLinks] | None = None,
        stretch: float = 1.0,
    ) -> None:
        """Make `self.mixing`. `weighted` conserves the mean weighted by shares; else the method weighs gradients.

        stretch: rounds mix with I + stretch (W - I).
        """
        weights = self.weights if weighted else "uniform"
        static = graph.on(self.context.size).cycle == 1 and links is None
        channel = self._replicas(graph, static, stretch) if self.context.wire is not None else None
        self.mixing = Mixing(self.context, graph, channel, links=links, weights=weights, stretch=stretch)

    def _replicas(self, graph: Topology, static: bool, stretch: float) -> ReplicaChannel:
        """Replicas on both ends of each link; on a graph that changes, codes of the distance to the initial model."""
        context, wire = self.context, self.context.wire
        assert wire is not None
        gamma = self.gamma
        if gamma is None:
            error = relative_error(wire, context.model_size.shapes)
            if error >= 1.0:
                raise UserError(
                    f"{type(self).__name__} needs a wire that leaves out less than it sends, {wire!r} does not: keep "
                    "more, or use feedback=1"
                )
            width = stretch * _width(graph.on(context.size)) if static else 0.0
            # Of rank 0: were it not the same everywhere, the mean would move.
            gamma = context.comm.gather_objects(consensus_step(error, width))[0]
        return wire.replicas("gossip", self.vectors, gamma, tracks=static)

    def takes_wires(self, size: int) -> tuple[str, str]:
        if self.topology.on(size).cycle != 1:
            return "casts", f"{self.topology!r} changes from round to round, so receivers have no replica of a sender"
        return "all", ""

    @property
    def spectral_gap(self) -> float:
        return mixing_gap(self.mixing.topology, self.mixing.shares)

    def mean_shares(self) -> list[float]:
        return self.mixing.shares

    def links(self, round: int) -> RoundLinks:
        return self.mixing.links(round)

    def finish(self) -> None:
        """Wait for a round in flight and discard it: no step is left to use it."""
        self.mixing.drop()

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        if not due:
            return 0, 0
        return gossip_cost(self.topology, model, rank, size, round, vectors=self.vectors)


def _width(graph: Topology) -> float:
    """The largest distance of an eigenvalue of W from 1; those of a directed graph are complex."""
    if graph.symmetric:
        return 1.0 - graph.lambda_min()
    return float(np.abs(1.0 - np.linalg.eigvals(graph.matrix())).max())
