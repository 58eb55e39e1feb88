from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata
from .elastic import Elastic


@dataclass
class EASGD(Elastic):
    """Elastic averaging: workers explore independently, tied to a centre that follows their mean.

        x_m <- x_m - (pull / N) (x_m - c);   c <- c + pull (mean of x - c)      both with the old values

    A round conserves the sum of all workers and the centre. The mean is weighted by the workers' shares of the examples
    where they differ. Every worker keeps a copy of the centre and updates it in the same way, so a round is one
    all-reduce of the model. Evaluate the centre. `pull = 0` is no communication. Stores the centre. Any optimizer takes
    the local steps; its state stays local.
    Reference: Zhang, Choromanska, LeCun, Deep Learning with Elastic Averaging SGD, NeurIPS 2015 (the synchronous form,
    with beta = `pull`).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="easgd", help="workers and a centre attract each other (elastic averaging)", cites=("zhang2015deep",)
    )

    STATE: ClassVar[tuple[str, ...]] = ("centre_model",)
    COMMON: ClassVar[tuple[str, ...]] = ("centre_model",)

    def init_state(self) -> None:
        self.init_centre()

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        self.place_centre(x)
