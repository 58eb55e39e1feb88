from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.method import Metadata, option
from .quantise import Quantised


@dataclass
class Int4(Quantised):
    """Integers of 4 bits with one scale per block: less than a seventh of the bytes of float32.

        m = s q,   q = round(e / s) in [-8, 7],   |m - e| <= |s| / 2,   |s| about max |e| / 8 over the block

    Stores the residual, and 1/N of a vector for the sums that this rank codes again. Sends 0.531 bytes per element,
    the scale (bfloat16) included. Sums as in int8: float32, coded once more. With error feedback, or with replicas,
    exact in the limit with every sync that takes it. The relative error is 9.5 % for normal elements; in blocks of
    128 it is 10.4 % at 0.516 bytes, so that smaller blocks pay for their scales, most of all with heavy tails.

    |s| is at most max |e| / 7.4, so the squared error is at most block / 220 of the square of the vector: blocks above
    220 elements are no contraction in the worst case. Stochastic rounding is unbiased, with twice the squared error;
    where there is a residual, nearest is better.
    Reference: Douillard et al., Streaming DiLoCo with overlapping communication, 2025 (arXiv 2501.18512); Alistarh et
    al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, NeurIPS 2017.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="int4",
        help="4 bits and a scale per block: less than a seventh of the bytes",
        cites=("douillard2025streaming", "alistarh2017qsgd"),
    )

    bits: ClassVar[int] = 4

    block: int = option(64, help="elements that share a scale", least=1)
