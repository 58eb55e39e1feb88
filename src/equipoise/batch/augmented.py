from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata, option
from .adaptive import Adaptive, ratio
from .inner_product import along_need
from .noise import NoiseEstimate


@dataclass
class Augmented(Adaptive):
    """The inner-product test, and one for the noise across the gradient.

        along:   Var_i <g_i, v> / n                     <= theta^2 |v|^4
        across:  (tr S - Var_i <g_i, v> / |v|^2) / n    <= nu^2 |v|^2

    The larger size of the two wins. The variance across v is what is left of tr S without the part along it, over all
    parameters at once. With theta^2 + nu^2 = eta^2 it asks in total for what the norm test does, split in two.
    Reference: Bollapragada, Byrd, Nocedal, Adaptive Sampling Strategies for Stochastic Optimization, SIAM J. Optim. 2018.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="augmented",
        help="inner-product test, and one for the noise across the gradient",
        cites=("bollapragada2018adaptive",),
    )

    along: ClassVar[bool] = True

    theta: float = option(0.9, help="how much noise along the gradient is tolerated", above=0)
    nu: float = option(5.84, help="how much noise across the gradient is tolerated", above=0)

    def wanted(self, estimate: NoiseEstimate) -> tuple[float, dict[str, float]]:
        along = along_need(estimate, self.theta)
        rest = (
            max(0.0, estimate.variance - ratio(estimate.along, estimate.norm))
            if estimate.norm > 0
            else estimate.variance
        )
        across = ratio(rest / self.nu**2, estimate.norm)
        need = max(along, across)
        numbers = {"test": need * estimate.noise, "along": estimate.along, "across": rest}
        return estimate.parts * need, numbers
