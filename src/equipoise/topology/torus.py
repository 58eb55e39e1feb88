from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..core.errors import UserError
from ..core.method import Metadata, option
from .base import Static
from .weights import metropolis


@dataclass
class Torus(Static):
    """A grid whose opposite sides are joined: four neighbours, Metropolis-Hastings weights.

    Worker r is in row r // columns, column r % columns. lambda = (3 + 2 cos(2 pi / s)) / 5 on a square of
    side s >= 3, and lambda_min = -3/5 if s is even: use `lazy` with methods that need it above -1/3.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="torus", help="a grid whose opposite sides are joined: four neighbours"
    )

    rows: int = option(0, help="rows of the grid; 0 takes the most square grid", least=0)

    def edges(self, round: int, rank: int, size: int) -> list[tuple[int, float]]:
        rows, columns = self.grid(size)

        def peers(i: int) -> list[int]:
            row, column = divmod(i, columns)
            around = [
                (row - 1) % rows * columns + column,
                (row + 1) % rows * columns + column,
                row * columns + (column - 1) % columns,
                row * columns + (column + 1) % columns,
            ]
            return [peer for peer in dict.fromkeys(around) if peer != i]  # on two rows, up and down are one peer

        return metropolis(rank, peers)

    def grid(self, size: int) -> tuple[int, int]:
        """Rows and columns over `size` workers."""
        if self.rows:
            if size % self.rows:
                raise UserError(f"Torus(rows={self.rows}) over {size} workers: rows must divide {size}; 0 chooses")
            return self.rows, size // self.rows
        rows = max(d for d in range(1, math.isqrt(size) + 1) if size % d == 0)
        if rows == 1 and size > 3:
            raise UserError(
                f"a torus over {size} workers: {size} is prime, the grid would be a ring: "
                f"use ring, or {size + 1} workers"
            )
        return rows, size // rows
