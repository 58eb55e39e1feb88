from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata, option
from .elastic import Elastic
from .momentum import nesterov


@dataclass
class EAMSGD(Elastic):
    """Elastic averaging with Nesterov momentum on every worker.

        v_m <- delta v_m + g_m;   x_m <- x_m - a (g_m + delta v_m)                 at every step
        x_m <- x_m - (pull / N) (x_m - c);   c <- c + pull (mean of x - c)        at a round, as in EASGD

    The momentum is part of the method: use plain SGD. The momentum of an optimizer adds to it; EASGD with
    SGD(momentum=0.9, nesterov=True) is the same method with the momentum in the optimizer. Momenta stay local and are
    not affected by the pull.
    Stores the centre and the momentum, sends what EASGD sends. A worker without examples keeps its momentum.
    Reference: Zhang, Choromanska, LeCun, Deep Learning with Elastic Averaging SGD, NeurIPS 2015.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="eamsgd", help="elastic averaging with local Nesterov momentum", cites=("zhang2015deep",)
    )

    uses_gradient: ClassVar[bool] = True
    STATE: ClassVar[tuple[str, ...]] = ("centre_model", "momentum")
    COMMON: ClassVar[tuple[str, ...]] = ("centre_model",)
    OWN: ClassVar[tuple[str, ...]] = ("momentum",)

    delta: float = option(0.9, help="of the momentum", least=0, below=1)

    def init_state(self) -> None:
        self.init_centre()
        self.momentum = torch.zeros_like(self.flat.x)

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        assert g is not None
        self.place_centre(x)
        if self.context.clock.batch:
            nesterov(self.momentum, g, self.delta)
