from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import Metadata
from .cast import Cast


@dataclass
class Float16(Cast):
    """Differences rounded to float16: 5 bits of exponent, 11 of precision.

        m = round(e),   |m - e| <= 2^-11 |e| + 2^-25  element by element,   cut off at 65504

    Stores the residual, sends 2 bytes per element: half of float32. More precise than bfloat16 where differences are
    between 6e-5 and 65504; smaller ones lose precision, and the residual keeps what is lost. Sums as in bfloat16.
    With error feedback, or with replicas, exact in the limit with every sync that takes it.
    """

    metadata: ClassVar[Metadata] = Metadata(name="float16", help="16 bits, more precise in a smaller range")

    dtype: ClassVar[torch.dtype] = torch.float16
