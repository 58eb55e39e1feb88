from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata, option
from .adaptive import Adaptive, ratio
from .noise import NoiseEstimate


@dataclass
class CABS(Adaptive):
    """Couple the batch size to the learning rate, so that noise changes the loss by a fixed fraction.

        B = scale * a tr S / F        a: learning rate, F: the loss, which must be positive and tend to zero

    Sizes may shrink by default: they fall with the learning rate. Derived for plain SGD; with another optimizer
    `a` is not the size of the step, and `scale` has to compensate.
    Reference: Balles, Romero, Hennig, Coupling Adaptive Batch Sizes with Learning Rates, UAI 2017.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="cabs", help="coupled to the learning rate: a tr S / loss", cites=("balles2017coupling",)
    )

    shrink: bool = option(True, help="let sizes fall again, not below the start")
    scale: float = option(1.0, help="batch in units of a tr S / F", above=0)

    def wanted(self, estimate: NoiseEstimate) -> tuple[float, dict[str, float]]:
        need = ratio(self.scale * self.context.clock.lr * estimate.variance, estimate.loss)
        return estimate.parts * need, {"test": need * estimate.noise, "loss": estimate.loss}
