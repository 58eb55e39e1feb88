from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata, option
from .adaptive import Adaptive, ratio
from .noise import NoiseEstimate


@dataclass
class InnerProduct(Adaptive):
    """Grow the batch when steps are not descent directions with high probability.

        test:  Var_i <g_i, v> / n <= theta^2 |v|^4        v is the gradient under test, n the examples in it
        else:  b <- Var_i <g_i, v> / (M theta^2 |v|^4), rounded up

    Weaker than the norm test: it tolerates noise orthogonal to the gradient, so batches stay smaller. With several
    workers the variance is that of <v_m, v>, each worker weighted by its examples; with `tested="own"` that of the
    others' <v_l, v_m>. A few more numbers per worker are sent, and no vector, unless single examples are measured
    along the mean of all workers.
    Reference: Bollapragada, Byrd, Nocedal, Adaptive Sampling Strategies for Stochastic Optimization, SIAM Journal on
    Optimization 2018.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="inner-product",
        help="grows when steps are not reliably descent directions",
        cites=("bollapragada2018adaptive",),
    )

    along: ClassVar[bool] = True

    theta: float = option(0.9, help="how much noise along the gradient is tolerated", above=0)

    def wanted(self, estimate: NoiseEstimate) -> tuple[float, dict[str, float]]:
        need = along_need(estimate, self.theta)
        return estimate.parts * need, {"test": need * estimate.noise, "along": estimate.along}


def along_need(estimate: NoiseEstimate, theta: float) -> float:
    """Examples that a gradient needs to pass the inner-product test."""
    return ratio(estimate.along / theta**2, estimate.norm**2)
