from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata
from .cast import Cast


@dataclass
class BFloat16(Cast):
    """Differences rounded to bfloat16: 8 bits of exponent, 8 of precision.

        m = round(e),   |m - e| <= 2^-8 |e|  element by element

    Stores the residual, sends 2 bytes per element: half of float32. A sum is taken in float32 and rounded once more
    (all-to-all, sum, all-gather), as many bytes as an all-reduce. The range is that of float32, so nothing overflows.
    With error feedback, or with replicas, exact in the limit with every sync that takes it; on a graph that changes
    from round to round the distance to the initial model is rounded, which is not.
    """

    metadata: ClassVar[Metadata] = Metadata(name="bfloat16", help="16 bits, the range of float32: half of the bytes")

    dtype: ClassVar[torch.dtype] = torch.bfloat16
