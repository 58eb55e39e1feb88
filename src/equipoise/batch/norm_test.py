from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata, option
from .adaptive import Adaptive, ratio
from .noise import NoiseEstimate


@dataclass
class NormTest(Adaptive):
    """Grow the batch when the gradient's noise is large relative to the gradient itself.

        test:  V / n <= eta^2 |v|^2        V estimates tr S, v is the gradient under test, n the examples in it
        else:  b <- min(most, max(b, ceil(V / (M eta^2 |v|^2))))

    With `tested="mean"`, the default, v is the mean of all M workers' gradients at the last local step of a round and b
    a worker's size, 1/M of what v needs; `tested="own"` tests each worker's gradient by itself, M times as strictly.
    `debias=True` subtracts the noise from |v|^2. Without it sizes settle at (1 - eta^2) of the size that passes the
    exact test, which debiasing reaches; where only noise is left, a test multiplies sizes by 1 / eta^2. So eta above 1
    never grows on noise alone, and with eta far below 1 the first tests reach `most` unless `growth` limits them. A
    gradient that is zero up to noise asks for the largest size; no gradient at all, or one that is not finite, changes
    nothing. Any optimizer; the statistics are those of gradients before clipping. After local steps the workers'
    parameters differ, which adds their disagreement to V; `gradient="first"` measures where they are equal.
    Reference: Lau, Li, Xu, Liu, Kolar, Communication-Efficient Adaptive Batch Size Strategies for Distributed Local
    Gradient Methods, 2024 (arXiv 2406.13936); Byrd, Chin, Nocedal, Wu, Mathematical Programming 2012.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="norm-test",
        help="the paper's test: grows when noise is large relative to the gradient; for fewer rounds use annealed",
        cites=("lau2024communication", "byrd2012sample"),
    )

    eta: float = option(0.8, help="how much noise is tolerated, relative to the gradient", above=0)
    debias: bool = option(False, help="subtract the noise from the measured norm of the gradient")

    def wanted(self, estimate: NoiseEstimate) -> tuple[float, dict[str, float]]:
        norm = estimate.square if self.debias else estimate.norm
        total = estimate.parts * ratio(estimate.variance / self.eta**2, norm)
        return total, {"test": ratio(estimate.variance * estimate.noise / self.eta**2, norm)}
