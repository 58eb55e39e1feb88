from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..comm.fused_reduction import add
from ..comm.ledger import mean_cost
from ..comm.piggyback import sum_carrying
from ..core.method import option
from .base import Sync


@dataclass
class AllReduce(Sync):
    """Data-parallel SGD: gradients are averaged over workers at every step, weighted by their batch sizes.

        g <- sum_i b_i g_i / sum_i b_i

    which is the gradient of the union of all batches, also when batches are unequal or a worker has none. The batch
    sizes ride in the same message. With any optimizer all workers hold the same model at all times.
    `weights="uniform"` gives every worker that has examples the same weight instead.
    """

    uses_gradient: ClassVar[bool] = True
    every_step: ClassVar[bool] = True
    idle_steps: ClassVar[bool] = True

    weights: str = option("size", help="weigh gradients by batch size, or all alike", choices=("size", "uniform"))

    def start(self) -> None:
        self.context.averages = "gradient"

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        flat, comm, clock = self.context.flat, self.context.comm, self.context.clock
        assert g is not None
        assert flat is not None
        clock.rounds += 1
        # In units of the largest batch, so that full batches weigh 1 and need no multiplication.
        weight = clock.batch / self.context.reference if self.weights == "size" else float(clock.batch > 0)
        if weight != 1.0:
            g.mul_(weight)
        rider = self.context.rider
        if rider is not None and rider.aboard:
            total = add(sum_carrying(self.context, g, weight, "gradient"))
            if total:
                g.div_(total)
        elif _exact(g.dtype):
            message = flat.gradient_with_tail
            message[-1] = weight
            total = comm.weighted_mean(message)
        else:
            total = comm.sum(torch.tensor([weight])).item()
            comm.sum(g)
            if total:
                g.div_(total)
        if not total:
            clock.hold = True  # all batches were skipped: no momentum and no weight decay either

    def after_step(self, x: torch.Tensor) -> None: ...

    def centre(self) -> torch.Tensor | None:
        return None

    def cost(self, elements: int, itemsize: int, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        if itemsize >= 4:
            return mean_cost(elements + 1, itemsize, rank, size)
        (m1, b1), (m2, b2) = mean_cost(1, 4, rank, size), mean_cost(elements, itemsize, rank, size)
        return m1 + m2, b1 + b2


def _exact(dtype: torch.dtype) -> bool:
    """Can this dtype count examples? Half precision cannot, so its weights travel apart."""
    return dtype in (torch.float32, torch.float64)
