from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata, option
from .gradient_weighted import GradientWeighted


@dataclass
class MGRAWA(GradientWeighted):
    """Workers train locally and are pulled to a centre in which small gradients, found in flat regions, weigh most.

        b_m = (1 / n_m) / sum_j (1 / n_j);   c = sum_m b_m x_m;   x_m <- (1 - pull) x_m + pull c

    n_m is the norm of worker m's gradient: the sum of its layers' norms, as in the authors' code, or the Euclidean
    norm of the complete gradient (`norm = "l2"`). Weights are positive, sum to one and do not change when all norms
    are scaled alike; b_m n_m is the same for all. Equal norms (or `exponent = 0`) with `pull = 1` are Local SGD. One
    all-reduce of the model and one number per round; stores the centre and the message. Any optimizer takes the local
    steps; its state stays local. A worker that has no examples, or whose norm or model is not finite, gets weight zero;
    one whose model is not finite is reset to the centre. Where shares of the examples differ, weights are multiplied by
    them. The norm of a stochastic gradient is mostly noise. `debias` subtracts the noise of a larger fresh batch;
    `shrink` follows norms only as far as they are known:

        b_m = n_m^-r / sum_j n_j^-r;   r = max(0, 1 - V / B)

    B is the variance of log n over workers, V that of its noise, estimated from successive measurements and averaged
    over rounds. Norms that differ by noise get equal weights, norms that really differ the published ones. Four more
    numbers travel.
    With a `delay` the sums of a round travel during the next local steps. When they arrive, a worker is pulled by the
    distance that it had when it sent, x_m <- x_m + pull (c - sent x_m), and keeps the steps that it took meanwhile, as
    in CoCoD-SGD (Shen et al., IJCAI 2019). It hides the time of a round; the delay must be shorter than the period.
    Between rounds `prox` adds  prox (c - x) / H  to each step, taken at the same x as the gradient, where H is the
    number of steps of this worker in the last round. Evaluate the mean or the centre.
    Reference: Dimlioglu and Choromanska, GRAWA: Gradient-based Weighted Averaging for Distributed Training of Deep
    Learning Models, AISTATS 2024.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="mgrawa",
        help="pull to a centre weighted by inverse gradient norms, one weight per worker",
        cites=("dimlioglu2024grawa",),
    )

    norm: str = option(
        "layers", help="sum of the layers' norms, or norm of the complete gradient", choices=("layers", "l2")
    )

    def pool_norms(self, norms: torch.Tensor) -> torch.Tensor:
        return (norms.sum() if self.norm == "layers" else norms.norm()).reshape(1)
