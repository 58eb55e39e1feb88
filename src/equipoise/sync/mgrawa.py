from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata, option
from .pull import GradientWeighted


@dataclass
class MGRAWA(GradientWeighted):
    """Workers train alone and are pulled to a centre in which those with small gradients, in flat regions, weigh most.

        b_m = (1 / n_m) / sum_j (1 / n_j);   c = sum_m b_m x_m;   x_m <- (1 - pull) x_m + pull c

    n_m is the norm of worker m's gradient: the sum of its layers' norms, as in the authors' code, or the Euclidean
    norm of all of it (`norm = "l2"`). Weights are positive, sum to one and do not change when all norms grow alike;
    b_m n_m is the same for all. Equal norms (or `exponent = 0`) with `pull = 1` are Local SGD. One collective of the
    model and one number per round; stores the centre and the message. Any optimizer takes the local steps and keeps
    its state. The norm of a stochastic gradient is mostly noise near the end, which makes the weights nearly equal: a
    larger fresh batch, or `debias`, brings them apart. A worker that has no examples, or whose norm or model is not
    finite, weighs nothing; one whose model is not finite takes the centre.
    Where shares of the examples differ, weights are multiplied by them.
    Between rounds `prox` adds its part of  prox (c - x)  to each step, taken at the same x as the gradient, over as
    many steps as this worker took in the round before. Evaluate the mean or the centre.
    Reference: Dimlioglu and Choromanska, GRAWA: Gradient-based Weighted Averaging for Distributed Training of Deep
    Learning Models, AISTATS 2024.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="mgrawa",
        help="pull to a centre weighted by inverse gradient norms, one weight per worker",
        cites=("dimlioglu2024grawa",),
    )

    norm: str = option(
        "layers", help="the sum of the layers' norms, or the norm of the whole gradient", choices=("layers", "l2")
    )

    def levels(self, norms: torch.Tensor) -> torch.Tensor:
        return (norms.sum() if self.norm == "layers" else norms.norm()).reshape(1)
