from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.errors import UserError
from ..core.method import Metadata
from .base import Static


@dataclass
class Hypercube(Static):
    """Worker i talks to the d workers whose rank differs from i in one bit; n = 2^d, weights 1 / (d + 1).

    lambda = (d - 1) / (d + 1) = -lambda_min; `lazy`: lambda = d / (d + 1), lambda_min = 1 / (d + 1).
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="hypercube", help="peers whose ranks differ in one bit; the world size must be a power of two"
    )

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        dimensions = size.bit_length() - 1
        if size != 1 << dimensions:
            raise UserError(
                f"a hypercube over {size} workers: the number must be a power of two: "
                f"use {1 << dimensions} or {2 << dimensions} workers, or base-k, which takes any number"
            )
        return [(rank ^ (1 << bit), 1.0 / (dimensions + 1)) for bit in range(dimensions)]
