from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ..core.method import Metadata, option
from ..core.vector import ModelSize
from ..topology.base import Topology
from ..topology.ring import Ring
from ..topology.tree import shallowest_tree
from .accumulation import accumulate
from .base import Needs, StepPlan
from .gossip import STATIC, OnGraph
from .mixing import Mixing, RoundLinks, require_static


@dataclass
class DeFacto(OnGraph):
    """Factorised consensus: gradients accumulated at a frozen model, one step, then rounds whose product is the mean.

        s_i <- mean of g_i(x_i) over the steps of a period
        x   <- W_R ... W_1 (x - a s),     W_R ... W_1 = 11^T / n,  every factor on the edges of the graph

    so that all workers hold the same model again: this is centralised SGD on the batches of all workers and steps of a
    period. Every worker has to know the complete graph. Two factorisations:
        spectral: (W - mu I) / (1 - mu) for each eigenvalue mu != 1 of W. On a ring, path, star or hypercube the number
            of rounds is the diameter; on an irregular graph up to n - 1.
        tree: a reduction along a spanning tree from the leaves to the root, then a broadcast of the mean back: twice
            the radius of the graph.
    A period of H steps is one phase: the model is updated at its last step, followed by all rounds. (The paper
    alternates R steps of accumulation and R steps of gossip; here no gradient is discarded. Its choice is H = R.)
    Stores one vector (s); sends one to each neighbour per spectral round, or one up and one down each tree edge.
    Momentum is linear and equals centralised momentum; Adam's moments stay local, so it is not centralised Adam.
    Where shares pi_i of the examples differ, g_i is multiplied by N pi_i, so that every example counts the same.
    Reference: Lu and De Sa, Optimal Complexity in Decentralized Training, ICML 2021.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="defacto", help="gossip rounds whose product is the exact mean", cites=("lu2021optimal",)
    )

    uses_gradient: ClassVar[bool] = True
    idle_steps: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("gathered", "gathered_steps")
    HEALTH: ClassVar[tuple[str, ...]] = ("factor_rounds",)

    topology: Topology = option(Ring(), help=STATIC)
    factors: str = option(
        "auto", help="how the mean is factorised; auto takes fewer rounds", choices=("auto", "spectral", "tree")
    )

    def needs(self) -> Needs:
        return Needs(due_before_step=True, static_graph=True)

    def takes_wires(self, size: int) -> tuple[str, str]:
        return "none", "its rounds multiply to the exact mean only if messages are exact"

    def init_state(self) -> None:
        graph = self.agreed_graph()
        spectrum, sweeps = distinct_eigenvalues(graph), tree_sweeps(graph)
        if self._use_tree(spectrum, sweeps):
            self.mixing = Mixing(self.context, graph, links=lambda round: sweeps[round][self.context.rank])
            self.sequence = [(1.0, 0.0)] * len(sweeps)
        else:
            self.mixing = Mixing(self.context, graph)
            self.sequence = [(1.0 / (1.0 - mu), -mu / (1.0 - mu)) for mu in spectrum]
        self.gathered = torch.zeros_like(self.flat.x)
        self.gathered_steps = 0

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> StepPlan:
        assert g is not None
        self.weigh(g)
        due = self.context.clock.due
        self.gathered_steps = accumulate(self.gathered, self.gathered_steps, g, due=due)
        return StepPlan(optimize=due)

    def after_step(self, x: torch.Tensor) -> None:
        for round, (scale, keep) in enumerate(self.sequence):
            self.mixing.begin(x, round=round)
            self.mixing.end(x, x, scale=scale, keep=keep)

    @property
    def factor_rounds(self) -> int:
        return len(self.sequence)

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        if not due:
            return 0, 0
        graph = self.topology.on(size)
        spectrum, sweeps = distinct_eigenvalues(graph), tree_sweeps(graph)
        if self._use_tree(spectrum, sweeps):
            messages = sum(len(sweep[rank].targets) for sweep in sweeps)
        else:
            messages = len(spectrum) * len(graph.targets(0, rank))
        return messages, messages * model.elements * model.itemsize

    def _use_tree(self, spectrum: list[float], sweeps: list[list[RoundLinks]]) -> bool:
        return self.factors == "tree" or (self.factors == "auto" and len(sweeps) < len(spectrum))


def distinct_eigenvalues(topology: Topology) -> list[float]:
    """The distinct eigenvalues of W other than 1, in Leja order, which keeps the partial products small."""
    require_static(topology, DeFacto.__name__)
    remaining: list[float] = []
    for mu in np.linalg.eigvalsh(topology.matrix())[:-1]:
        if not remaining or mu - remaining[-1] > 1e-9:
            remaining.append(float(mu))
    ordered = [remaining.pop(int(np.argmax(np.abs(remaining))))] if remaining else []
    while remaining:
        distance = [sum(np.log(abs(mu - chosen)) for chosen in ordered) for mu in remaining]
        ordered.append(remaining.pop(int(np.argmax(distance))))
    return ordered


def tree_sweeps(topology: Topology) -> list[list[RoundLinks]]:
    """The links of every worker in every round: a reduction to the root of the tree, then a broadcast from it."""
    require_static(topology, DeFacto.__name__)
    size = topology.size
    tree = shallowest_tree(
        [[peer for peer, weight in topology.neighbours(0, rank) if weight > 0.0] for rank in range(size)]
    )
    children, sizes = tree.children(), tree.subtree_sizes()
    idle = RoundLinks(1.0, [], [])
    reductions, broadcasts = [], []
    for depth in range(max(tree.depth), 0, -1):  # between workers at this depth and their parents
        reduction, broadcast = [idle] * size, [idle] * size
        for rank in range(size):
            if tree.depth[rank] == depth:
                reduction[rank] = RoundLinks(1.0, [], [tree.parent[rank]])
                broadcast[rank] = RoundLinks(0.0, [(tree.parent[rank], 1.0)], [])
            elif tree.depth[rank] == depth - 1 and children[rank]:
                shares = [(child, sizes[child] / sizes[rank]) for child in children[rank]]
                reduction[rank] = RoundLinks(1.0 / sizes[rank], shares, [])
                broadcast[rank] = RoundLinks(1.0, [], children[rank])
        reductions.append(reduction)
        broadcasts.append(broadcast)
    return reductions + broadcasts[::-1]
