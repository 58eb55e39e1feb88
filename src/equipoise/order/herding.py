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

_MOST = 1 << 27  # numbers stored: half a gigabyte


def greedy_order(vectors: np.ndarray) -> np.ndarray:
    """Greedily the vector that keeps the prefix of centred vectors smallest. O(n^2) on the Gram matrix."""
    centred = vectors - vectors.mean(0)
    gram = (centred @ centred.T).astype(np.float64)
    cost = gram.diagonal().copy()  # ||P + z||^2 - ||P||^2
    order = np.empty(len(vectors), dtype=np.int64)
    for index in range(len(vectors)):
        order[index] = chosen = int(np.argmin(cost))
        cost += 2 * gram[chosen]
        cost[chosen] = np.inf
    return order


@dataclass
class Herding(Order):
    """Greedy herding on the gradients of the last epoch: always the example that keeps the prefix smallest.

        next = argmin over the remaining i of || sum of (g - mean) so far + (g_i - mean) ||

    It stores n gradients and compares n^2 times, so it is for small n. It is the reference for balanced orders, which
    usually lose nothing against it. Every worker orders its own block. Memory: n vectors (or sketches:
    `signal = projection`).

    Reference: Lu, Meng, De Sa, A General Analysis of Example-Selection for Stochastic Gradient Descent, ICLR 2022.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="herding", help="greedy herding on the last epoch's gradients; small data only", cites=("lu2022general",)
    )

    watches: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("number", "sequence", "gradients", "visited")
    HOST: ClassVar[tuple[str, ...]] = ("gradients",)

    signal: str = option(
        "exact",
        help="which gradients it uses: exact per-example ones, a sketch, or the last layer",
        choices=("exact", "projection", "count-sketch", "last-layer"),
    )

    def init_state(self) -> None:
        self.watch_through(signal_of(self.signal, 1))
        self.number = 0
        self.sequence: list[int] = self.context.worker.rng(1, 0).permutation(self.context.worker.examples).tolist()
        self.gradients: torch.Tensor | None = None  # one row per position
        self.visited: list[int] = []  # positions of this epoch

    def epoch(self, number: int) -> np.ndarray:
        if number != self.number:
            self.number = number
            if self.gradients is not None and self.visited:
                visited = np.array(sorted(set(self.visited)))
                ordered = visited[greedy_order(self.gradients[torch.from_numpy(visited)].numpy())].tolist()
                known = set(ordered)
                self.sequence = ordered + [position for position in self.sequence if position not in known]
            self.visited = []
        return np.asarray(self.sequence, dtype=np.int64)

    @torch.no_grad()
    def observe(self, positions: np.ndarray, view: GradientView | None) -> None:
        if view is None or not len(positions):
            return
        if self.gradients is None:
            examples = self.context.worker.examples
            if examples * view.dimension > _MOST:
                raise UserError(
                    f"herding would store {examples} gradients of {view.dimension} numbers: use --order pair-balance, "
                    "which stores one, or --order.signal projection"
                )
            self.gradients = torch.zeros(examples, view.dimension)
        rows = []
        for item in range(len(positions)):
            one = view.zeros().new_zeros(view.items)
            one[item] = 1.0
            rows.append(view.vector(one))
        self.gradients[torch.from_numpy(positions)] = torch.stack(rows).cpu().to(self.gradients.dtype)
        self.visited += positions.tolist()
