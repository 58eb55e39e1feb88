from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..comm.ledger import mean_cost
from ..core.method import Metadata, option
from ..core.vector import ModelSize
from .base import Sync
from .pull import elastic
from .shares import BY, HELP, shares_of


@dataclass
class EAMSGD(Sync):
    """Elastic averaging with Nesterov momentum on every worker.

        v_m <- delta v_m + g_m;   x_m <- x_m - a (g_m + delta v_m)                 at every step
        x_m <- x_m - (pull / N) (x_m - c);   c <- c + pull (mean of x - c)        at a round, as in EASGD

    The momentum is in the method: use plain SGD. An optimizer with a momentum of its own adds it on top, and EASGD with
    SGD(momentum=0.9, nesterov=True) is the same method with the momentum there. Momenta stay local and do not feel the
    pull.
    Stores the centre and the momentum, sends what EASGD sends. A worker without examples keeps its momentum.
    Reference: Zhang, Choromanska, LeCun, Deep Learning with Elastic Averaging SGD, NeurIPS 2015.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="eamsgd", help="elastic averaging with each worker's own Nesterov momentum", cites=("zhang2015deep",)
    )

    uses_gradient: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("middle", "momentum")

    pull: float = option(
        0.9, help="how far the centre moves to the mean at a round; workers move 1 / N of it", least=0, most=1
    )
    delta: float = option(0.9, help="of the momentum", least=0, below=1)
    weights: str = option("size", help=HELP, choices=BY)

    def init_state(self) -> None:
        self.middle: torch.Tensor | None = None
        self.momentum = torch.zeros_like(self.flat.x)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        assert g is not None
        if self.middle is None:
            self.middle = x.clone()  # not in `init_state`: a model may be loaded between that and the first step
        if self.context.clock.batch:
            self.momentum.mul_(self.delta).add_(g)
            g.add_(self.momentum, alpha=self.delta)

    def after_step(self, x: torch.Tensor) -> None:
        assert self.middle is not None
        self.context.clock.rounds += 1
        elastic(self.context, x, self.middle, self.pull, self.weights)

    def mean_shares(self) -> list[float]:
        return shares_of(self.context, self.weights)

    def centre(self) -> torch.Tensor | None:
        return self.middle

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        return mean_cost(model.elements, model.itemsize, rank, size) if due else (0, 0)
