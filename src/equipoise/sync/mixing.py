"""One round of gossip, x_i <- sum_j W_ij x_j, shared by the decentralised methods.

One message per neighbour, sent straight from the vector (no packing); what arrives is kept in buffers that are made
once. `begin` and `end` are apart so that a method can compute while the messages travel.
"""

from __future__ import annotations

import torch

from ..comm.base import Pending
from ..context import Context
from ..topology.base import Topology


class Mixing:
    """The wires of one worker. `wire` is the dtype on the wire (None: that of the vector)."""

    def __init__(self, context: Context, topology: Topology, wire: torch.dtype | None = None):
        self.context = context
        self.topology = topology.on(context.size)
        self.wire = wire
        self._inbox: list[torch.Tensor] = []
        self._pending: Pending | None = None
        self._round = 0

    def begin(self, message: torch.Tensor) -> None:
        """Send `message` to the neighbours of this round; it must not change before `end`."""
        assert self._pending is None, "a round is under way"
        clock, rank = self.context.clock, self.context.rank
        self._round = clock.rounds
        clock.rounds += 1
        sent = message if self.wire is None else message.to(self.wire)
        sources = [peer for peer, _ in self.topology.neighbours(self._round, rank)]
        while len(self._inbox) < len(sources) or (self._inbox and self._inbox[0].shape != sent.shape):
            if self._inbox and self._inbox[0].shape != sent.shape:
                self._inbox = []
            self._inbox.append(torch.empty_like(sent))
        outgoing = {peer: sent for peer, _ in self.topology.targets(self._round, rank)}
        self._pending = self.context.comm.exchange(outgoing, dict(zip(sources, self._inbox, strict=False)))

    @torch.no_grad()
    def end(self, own: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """out <- W_ii own + sum_j W_ij (what came from j). `out` may be `own`."""
        assert self._pending is not None, "no round is under way"
        self._pending.wait()
        self._pending = None
        pairs = self.topology.neighbours(self._round, self.context.rank)
        torch.mul(own, 1.0 - sum(weight for _, weight in pairs), out=out)
        for (_, weight), received in zip(pairs, self._inbox, strict=False):
            out.add_(received.to(out.dtype), alpha=weight)
        return out

    def mix(self, vector: torch.Tensor) -> torch.Tensor:
        """vector <- W vector, in place."""
        self.begin(vector)
        return self.end(vector, vector)


def gossip_cost(topology: Topology, elements: int, itemsize: int, rank: int, size: int, round: int) -> tuple[int, int]:
    """Messages and bytes of worker `rank` in one round of gossip with vectors of `elements`."""
    count = len(topology.on(size).targets(round, rank))
    return count, count * elements * itemsize
