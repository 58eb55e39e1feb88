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
class EASGD(Sync):
    """Elastic averaging: workers explore on their own, tied to a centre that follows their mean.

        x_m <- x_m - (pull / N) (x_m - c);   c <- c + pull (mean of x - c)      both with the values from before

    The sum of all workers and the centre is conserved: a round moves nothing but differences. The mean is weighted by
    the shares of the examples where they differ. The centre is everybody's
    own copy, updated alike, so a round is one collective of the model; it is the model to evaluate. `pull = 0` is no
    communication. Stores the centre. Any optimizer takes the local steps and keeps its state.
    Reference: Zhang, Choromanska, LeCun, Deep Learning with Elastic Averaging SGD, NeurIPS 2015 (the synchronous form,
    with beta = `pull`).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="easgd", help="workers and a centre attract each other (elastic averaging)", cites=("zhang2015deep",)
    )

    STATE: ClassVar[tuple[str, ...]] = ("middle",)

    pull: float = option(
        0.9, help="how far the centre moves to the mean at a round; workers move 1 / N of it", least=0, most=1
    )
    weights: str = option("size", help=HELP, choices=BY)

    def init_state(self) -> None:
        self.middle: torch.Tensor | None = None

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        if self.middle is None:
            self.middle = x.clone()  # not in `init_state`: a model may be loaded between that and the first step

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
