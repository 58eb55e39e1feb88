from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata, option
from ..signal.base import GradientView
from ..topology.one_peer import OnePeer
from ..topology.ring import Ring
from .balanced_order import BalancedOrder
from .builder import Builder
from .epoch_builder import EpochBuilder
from .neighbours import by_gossip, by_relay
from .sign_terms import NO_TERMS, PAIR, ChooseSign, Floats, TermSigns

_GRAPHS = {"ring": Ring, "one-peer": OnePeer}


@dataclass
class GossipGraB(BalancedOrder):
    """CD-GraB whose running sum is passed among neighbours: no gather, and one vector per message.

        relay:  for w = 1..W, then back from W to 1:  receive S, sign and add the pairs of this step, send S on
        gossip: x_w <- sum_j W_wj x_j,  sign against W x_w,  x_w <- x_w + s v;   the sum of all x_w is S

    `pass_on`: with `relay` all pairs of all workers are signed in one sequence, so the largest prefix is that of one
    worker with all the pairs, whatever the world size. A worker sends one vector per step, but a step waits for W - 1
    messages in a row. With `ring` and `one-peer` all workers sign at once after mixing with their neighbours on that
    graph (one-peer: a whole cycle, log2 W messages, after which a power of two knows S exactly). Their bound is flat
    only while the pairs that are signed before news of them arrives stay below an eighth of the effective dimension.

    Reference: the objective is that of Cooper et al., NeurIPS 2023 (CD-GraB); the sums are dynamic average consensus.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="gossip-grab",
        help="pair balance whose running sum is passed among neighbours",
        cites=("cooper2023coordinating", "lu2022grab"),
    )

    coordinated: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = (*BalancedOrder.STATE, "turn")

    pass_on: str = option("relay", help="how the sum is passed on", choices=("relay", *_GRAPHS))

    @property
    def streams(self) -> bool:
        return True

    def make_builder(self) -> Builder:
        self.turn = 0  # relay: steps so far; otherwise rounds of messages so far
        every = self.chosen.every
        return EpochBuilder(
            self.context, PAIR, self.group, every, self.sign, self.sign_own, end_epoch=lambda total: NO_TERMS
        )

    def sign_own(
        self, total: torch.Tensor | None, view: GradientView | None, terms: Floats, choose_sign: ChooseSign
    ) -> tuple[torch.Tensor | None, TermSigns]:
        """The signer of the builder."""
        comm = self.context.comm
        if total is None:
            total = self._allocated(view if len(terms) else None)
        if total is None:
            return None, NO_TERMS
        if self.pass_on == "relay":
            upward = self.turn % 2 == 0
            self.turn += 1
            return total, by_relay(comm, total, view, terms, choose_sign, upward)
        graph = _GRAPHS[self.pass_on]().on(comm.size)
        first, self.turn = self.turn, self.turn + graph.cycle
        return total, by_gossip(comm, total, view, terms, choose_sign, graph, range(first, self.turn))

    def _allocated(self, view: GradientView | None) -> torch.Tensor | None:
        """A share of S on every worker, at the first step in which any worker has a pair."""
        own = None if view is None else view.zeros()
        known = [row for row in self.context.comm.gather_objects(own if own is None else (len(own), own.dtype)) if row]
        if not known or own is not None:
            return own
        flat = self.context.flat
        length, dtype = known[0]
        return torch.zeros(length, dtype=dtype, device=None if flat is None else flat.x.device)
