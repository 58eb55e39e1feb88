from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata
from .quantise import Quantised


@dataclass
class Int8(Quantised):
    """Integers of 8 bits with one scale per block: a quarter of the bytes of float32.

        m = s q,   q = round(e / s) in [-128, 127],   |m - e| <= |s| / 2,   |s| about max |e| / 128 over the block

    Stores the residual, and 1/N of a vector for the sums that this rank codes again. Sends 1.008 bytes per element,
    the scale (bfloat16) included. Chunks go to their ranks, are summed in float32 and coded once more (all-to-all,
    all-gather), so the number of workers does not add rounding errors, as it would on a ring that codes at every hop.
    With error feedback, or with replicas, exact in the limit with every sync that takes it. The relative error is
    0.7 % for normal elements.

    Stochastic rounding, floor(e / s + u) with u uniform in [0, 1), is unbiased and has twice the squared error. Where
    there is a residual, nearest is better. One element that is far larger than the others of its block takes their
    precision: then lower `block`.
    Reference: Wang et al., ZeRO++: Extremely Efficient Collective Communication for Giant Model Training, 2023 (arXiv
    2306.10209); Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, NeurIPS
    2017.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="int8",
        help="8 bits and a scale per block: a quarter of the bytes",
        cites=("wang2023zero", "alistarh2017qsgd"),
    )

    bits: ClassVar[int] = 8
