"""Gossip through a wire: what is sent is the distance to a replica that the receivers hold (CHOCO-SGD).

    q_i = C(x_i - xh_i);   xh_i <- xh_i + q_i   at i and at all that receive from i
    x_i <- x_i + gamma sum_j W_ij (xh_j - xh_i)

The mean of all x is conserved whatever C leaves out, and near consensus the distances vanish, so the result is exact
in the limit. A worker keeps its own replica and one for each worker that it receives from, and the graph must be the
same in every round. On a graph that changes, a wire that rounds each element by itself sends the distance to the
initial model instead, which all workers know: nothing is kept, and the rounding errors do not vanish.
Reference: Koloskova, Stich, Jaggi, Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
Communication, ICML 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..core.finite import is_finite
from .base import Draw, pieces_of

if TYPE_CHECKING:
    from .base import Wire


class ReplicaChannel:
    """The replicas of one worker, of the model and of the vectors that travel behind it. They begin at the initial
    model and at zero.
    """

    # What outlives a change of membership; replicas begin anew, on both ends of each link.
    COMMON = ("count",)
    OWN = ("memory",)

    def __init__(self, wire: Wire, number: int, vectors: int, gamma: float, *, tracks: bool = True):
        assert wire.context.flat is not None
        self.wire, self.context, self.number = wire, wire.context, number
        self.vectors, self.gamma, self.tracks = vectors, gamma, tracks
        shapes = tuple(tuple(s.shape) for s in wire.context.flat.slices)
        self.pieces = pieces_of(shapes * vectors)
        self.count = 0  # rounds so far
        self.memory: Any = None  # of the wire
        self.own: torch.Tensor | None = None  # xh_i
        self.others: dict[int, torch.Tensor] = {}  # xh_j, by rank
        self._message = torch.empty(0)
        self._next_memory: Any = None

    @torch.no_grad()
    def encode(self, vector: torch.Tensor) -> torch.Tensor:
        """The message for a vector. Replicas advance when the round ends."""
        if self.own is None:
            self.own = self._initial(vector)
        distance = vector.to(torch.float32) - self.own
        if not is_finite(distance):
            distance.fill_(torch.nan)
        self._message, self._next_memory = self.wire.encode(distance, self.pieces, self._draw(), self.memory)
        return self._message

    @torch.no_grad()
    def advance(self, messages: Mapping[int, torch.Tensor]) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """The own replica and those of the senders, after this round."""
        assert self.own is not None
        own, others = self.own, self.others
        if not self.tracks:
            own, others = own.clone(), {p: own.clone() for p in messages}
        for p, message in messages.items():
            if p not in others:
                others[p] = self._initial(own)
            self.wire.add_decoded(message, others[p], self.pieces, self._draw(p))
        self.wire.add_decoded(self._message, own, self.pieces, self._draw())
        self.memory = self._next_memory
        self.count += 1
        return own, others

    @torch.no_grad()
    def begin_at(self, common: torch.Tensor, senders: list[int]) -> None:
        """All workers hold this vector: replicas, the own one and those of the senders, begin anew there."""
        self.own = common.to(torch.float32, copy=True)
        self.others = {p: self.own.clone() for p in senders}

    def _initial(self, like: torch.Tensor) -> torch.Tensor:
        initial = self.wire.initial
        assert initial is not None, "replicas need the initial model"
        replica = torch.zeros(len(like), dtype=torch.float32, device=like.device)
        replica[: len(initial)] = initial
        return replica

    def _draw(self, rank: int | None = None) -> Draw:
        worker = self.context.worker
        return Draw(worker.seed, worker.rank if rank is None else rank, self.number, self.count)

    def drop(self) -> None:
        """A round in flight has changed nothing here."""

    def forget(self) -> None:
        """Begin all replicas anew; all workers do so together."""
        self.own, self.others, self.memory = None, {}, None

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("gamma", "count", "memory", "own", "others")}

    def load(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


@torch.no_grad()
def relative_error(wire: Wire, shapes: tuple[tuple[int, ...], ...], *, most: int = 1 << 16) -> float:
    """||C(v) - v|| / ||v|| for a vector of normal numbers: what one message leaves out."""
    pieces = pieces_of(shapes, 0, most)
    elements = sum(p.rows * p.columns for p in pieces)
    vector = torch.randn(elements, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    draw = Draw(0, 0, 0, 0)
    message, _ = wire.encode(vector.clone(), pieces, draw, None)
    left = vector.clone()
    wire.add_decoded(message, left, pieces, draw, -1.0)
    return float(left.norm() / vector.norm())


def consensus_step(error: float, width: float) -> float:
    """gamma, at most 1, for a wire that leaves out the part `error` and a graph with eigenvalues down to 1 - `width`.

    For a mode of disagreement with the eigenvalue 1 - mu, one round is  x' = (1 - gamma mu) x + gamma mu e,
    |e'| <= error (gamma mu |x| + (1 + gamma mu) |e|),  which contracts if  gamma mu < (1 - error) / (2 error).
    """
    if error * width <= 0.0:
        return 1.0
    # Few digits: eigenvalues and norms may differ in the last bit from one computation to the next.
    return float(f"{min(1.0, (1.0 - error) / (2.0 * error * width)):.3g}")
