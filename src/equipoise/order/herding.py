from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ..core.errors import UserError
from ..core.method import Metadata, option
from ..signal import signal_of
from ..signal.base import GradientView
from .base import Order

_MOST = 1 << 27  # numbers kept: half a gigabyte


def greedy_order(vectors: np.ndarray) -> np.ndarray:
    """Always the vector that keeps the prefix of the centred ones smallest. O(n^2) choices on the Gram matrix."""
    centred = vectors - vectors.mean(0)
    gram = (centred @ centred.T).astype(np.float64)
    cost = gram.diagonal().copy()  # ||P + z||^2 - ||P||^2
    order = np.empty(len(vectors), dtype=np.int64)
    for place in range(len(vectors)):
        order[place] = chosen = int(np.argmin(cost))
        cost += 2 * gram[chosen]
        cost[chosen] = np.inf
    return order


@dataclass
class Herding(Order):
    """Greedy herding on the gradients of the last epoch: always the example that keeps the prefix smallest.

        next = argmin over what is left of || sum of (g - mean) so far + (g_i - mean) ||

    Keeps n gradients and takes n^2 decisions, so it is for small n; the answer to what balancing gives up is usually:
    nothing. Every worker orders its own block. Memory: n vectors (or sketches: `signal = projection`).

    Reference: Lu, Meng, De Sa, A General Analysis of Example-Selection for Stochastic Gradient Descent, ICLR 2022.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="herding", help="greedy herding on the last epoch's gradients; small data only", cites=("lu2022general",)
    )

    watches: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("number", "sequence", "kept", "seen")

    signal: str = option(
        "exact",
        help="what is seen of a gradient: all of it, a sketch, or the last layer",
        choices=("exact", "projection", "count-sketch", "last-layer"),
    )

    def init_state(self) -> None:
        self.watch_through(signal_of(self.signal, 1))
        self.number = 0
        self.sequence: list[int] = self.context.worker.rng(1, 0).permutation(self.context.worker.examples).tolist()
        self.kept: torch.Tensor | None = None
        self.seen: list[int] = []

    def epoch(self, number: int) -> np.ndarray:
        if number != self.number:
            self.number = number
            if self.kept is not None and self.seen:
                seen = np.array(sorted(set(self.seen)))
                chosen = seen[greedy_order(self.kept[torch.from_numpy(seen)].numpy())].tolist()
                known = set(chosen)
                self.sequence = chosen + [position for position in self.sequence if position not in known]
            self.seen = []
        return np.asarray(self.sequence, dtype=np.int64)

    @torch.no_grad()
    def observe(self, positions: np.ndarray, view: GradientView | None) -> None:
        if view is None or not len(positions):
            return
        if self.kept is None:
            numbers = self.context.worker.examples * view.dimension
            if numbers > _MOST:
                raise UserError(
                    f"herding would keep {self.context.worker.examples} gradients of {view.dimension} numbers: use --order pair-balance, which "
                    "keeps one, or --order.signal projection"
                )
            self.kept = torch.zeros(self.context.worker.examples, view.dimension)
        for item, position in enumerate(positions.tolist()):
            one = view.zeros().new_zeros(view.items)
            one[item] = 1.0
            self.kept[position] = view.vector(one).cpu()
        self.seen += positions.tolist()
