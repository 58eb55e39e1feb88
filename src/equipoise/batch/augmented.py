from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata, option
from .adaptive import Adaptive, ratio
from .inner_product import along_need
from .noise import NoiseEstimate


@dataclass
class Augmented(Adaptive):
    """The inner-product test, and one for the noise orthogonal to the gradient.

        along:   Var_i <g_i, v> / n                     <= theta^2 |v|^4
        across:  (tr S - Var_i <g_i, v> / |v|^2) / n    <= nu^2 |v|^2

    The larger size of the two is taken. The variance across v is tr S minus the variance along v, over all parameters
    at once. With theta^2 + nu^2 = eta^2 both tests together are as strict as the norm test.
    Reference: Bollapragada, Byrd, Nocedal, Adaptive Sampling Strategies for Stochastic Optimization, SIAM Journal on
    Optimization 2018.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="augmented",
        help="inner-product test, and one for the noise orthogonal to the gradient",
        cites=("bollapragada2018adaptive",),
    )

    along: ClassVar[bool] = True

    theta: float = option(0.9, help="how much noise along the gradient is tolerated", above=0)
    nu: float = option(5.84, help="how much noise orthogonal to the gradient is tolerated", above=0)

    def wanted(self, estimate: NoiseEstimate) -> tuple[float, dict[str, float]]:
        across = estimate.variance
        if estimate.norm > 0:
            across = max(0.0, estimate.variance - ratio(estimate.along, estimate.norm))
        need = max(along_need(estimate, self.theta), ratio(across / self.nu**2, estimate.norm))
        numbers = {"test": need * estimate.noise, "along": estimate.along, "across": across}
        return estimate.parts * need, numbers
