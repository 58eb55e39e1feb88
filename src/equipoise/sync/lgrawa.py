from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata
from .gradient_weighted import GradientWeighted


@dataclass
class LGRAWA(GradientWeighted):
    """MGRAWA with one weight per layer: the centre of each layer favours the workers that are flattest in it.

        b_ml = (1 / n_ml) / sum_j (1 / n_jl);   c_l = sum_m b_ml x_ml;   x_m <- (1 - pull) x_m + pull c

    A layer is one parameter tensor (weight, bias and the scales of BatchNorm each count), n_ml the norm of worker m's
    gradient there. With one layer, or where workers' norms stand in the same ratio in all layers, it is MGRAWA. One
    all-reduce of the model and one number per layer per round (four with `shrink`, which finds r for each layer);
    everything else is as in MGRAWA. Each layer of the centre is weighted differently: with a strong pull it is a model
    that no worker has trained, so evaluate it with recomputed BatchNorm statistics (`--buffers recompute`).
    Reference: Dimlioglu and Choromanska, GRAWA, AISTATS 2024. There period 32, pull 0.5, prox 0.01.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="lgrawa",
        help="pull to a centre weighted by inverse gradient norms, one weight per layer",
        cites=("dimlioglu2024grawa",),
    )

    def pool_norms(self, norms: torch.Tensor) -> torch.Tensor:
        return norms
