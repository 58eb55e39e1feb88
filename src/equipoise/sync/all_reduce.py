from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..comm.fused_reduction import sum_in_order
from ..comm.ledger import mean_cost
from ..comm.piggyback import Piggyback, sum_with_piggyback
from ..core.method import Metadata, option
from ..core.vector import ModelSize
from ..wire.channel import sum_cost
from .base import Needs, StepPlan, Sync


@dataclass
class AllReduce(Sync):
    """Data-parallel SGD: gradients are averaged over workers at every step, weighted by their batch sizes.

        g <- sum_i b_i g_i / sum_i b_i

    which is the gradient of the union of all batches, also when batches are unequal or a worker has none. The batch
    sizes travel in the same message. With any optimizer all workers hold the same model at all times.
    `weights="uniform"` gives every worker that has examples the same weight instead. Through a compressing wire every
    worker sends its weighted gradient with error feedback, and all workers still receive the same sum.
    """

    metadata: ClassVar[Metadata] = Metadata(name="all-reduce", help="gradients averaged at every step (data parallel)")

    uses_gradient: ClassVar[bool] = True
    idle_steps: ClassVar[bool] = True
    tells: ClassVar[bool] = True

    weights: str = option("size", help="weigh gradients by batch size, or all alike", choices=("size", "uniform"))

    def needs(self) -> Needs:
        return Needs(every_step=True)

    def equal_after_round(self) -> bool:
        return True

    def averages(self) -> str:
        return "gradient"

    def takes_wires(self, size: int) -> tuple[str, str]:
        return "all", ""

    def sends_before_step(self) -> bool:
        return True

    def init_state(self) -> None:
        self.piggyback: Piggyback | None = None
        self.channel = self.context.wire.sums("gradients") if self.context.wire is not None else None

    def carry(self, piggyback: Piggyback | None) -> None:
        self.piggyback = piggyback

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> StepPlan:
        comm, clock = self.context.comm, self.context.clock
        assert g is not None
        clock.rounds += 1
        # In units of the largest batch, so that full batches weigh 1 and need no multiplication.
        weight = clock.batch / clock.largest_batch if self.weights == "size" else float(clock.batch > 0)
        if weight != 1.0:
            g.mul_(weight)
        if not clock.sound:
            weight = math.nan  # so that the sum of the weights tells all workers
        if self.channel is not None:
            summed, (total,) = self.channel.sum(g, [weight])
            g.copy_(summed.div_(total or 1.0))
        elif self.piggyback is not None:
            total = sum_in_order(sum_with_piggyback(comm, g, weight, "gradient", self.piggyback))
            if total:
                g.div_(total)
        elif _exact(g.dtype):
            message = self.flat.gradient_with_tail
            message[-1] = weight
            total = comm.weighted_mean(message)
        else:
            total = comm.sum(torch.tensor([weight], dtype=torch.float32)).item()
            comm.sum(g)
            if total:
                g.div_(total)
        if math.isnan(total):
            g.zero_()
            return StepPlan(optimize=False, alarm=True)
        # If all batches were skipped the optimizer takes no step: no momentum and no weight decay either.
        return StepPlan(optimize=bool(total))

    def after_step(self, x: torch.Tensor) -> None: ...

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        if model.wire is not None:
            return sum_cost(model, 1, rank, size)
        if model.itemsize >= 4:
            return mean_cost(model.elements + 1, model.itemsize, rank, size)
        (m1, b1), (m2, b2) = mean_cost(1, 4, rank, size), mean_cost(model.elements, model.itemsize, rank, size)
        return m1 + m2, b1 + b2


def _exact(dtype: torch.dtype) -> bool:
    """Can this dtype represent weights? Half precision cannot: there, weights travel separately."""
    return dtype in (torch.float32, torch.float64)
