from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata, option
from .adaptive import Adaptive, ratio
from .noise import NoiseEstimate


@dataclass
class NoiseScale(Adaptive):
    """The batch of all workers together follows the gradient noise scale.

        B = scale * tr S / |G|^2

    Below that size doubling the batch nearly halves the number of steps, above it hardly. Both estimates are unbiased
    and each is averaged over tests separately, because their ratio is biased. Sizes may shrink by default: those that
    only grow follow the largest of all estimates, not their mean. The norm test with debiasing and eta^2 = 1 / scale
    asks for the same size.
    Reference: McCandlish, Kaplan, Amodei, An Empirical Model of Large-Batch Training, 2018 (arXiv 1812.06162).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="noise-scale", help="follows the gradient noise scale tr S / |G|^2", cites=("mccandlish2018empirical",)
    )

    shrink: bool = option(True, help="let sizes fall again, not below the start")
    smoothing: float = option(0.9, help="weight of earlier tests in the measured noise", least=0, below=1)
    scale: float = option(1.0, help="batch in units of the noise scale", above=0)

    def wanted(self, estimate: NoiseEstimate) -> tuple[float, dict[str, float]]:
        need = ratio(self.scale * estimate.variance, estimate.square)
        return estimate.parts * need, {"test": need * estimate.noise}
