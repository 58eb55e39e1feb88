"""Wires that round every element to a narrower floating-point format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .base import Draw
from .rows import RowWire


@dataclass
class Cast(RowWire):
    """Final here: the rounding to `dtype`. Beyond its largest number a value is cut off; a residual keeps the rest."""

    dense: ClassVar[bool] = True
    memoryless: ClassVar[bool] = True
    dtype: ClassVar[torch.dtype]

    def collective(self) -> str:
        return "all-to-all"

    def row_length(self) -> int:
        return 1

    def row_bytes(self, length: int) -> int:
        return length * self.dtype.itemsize

    def encode_rows(self, rows: torch.Tensor, draw: Draw) -> torch.Tensor:
        largest = torch.finfo(self.dtype).max
        return rows.clamp(-largest, largest).to(self.dtype).view(torch.uint8)

    def add_decoded_rows(self, codes: torch.Tensor, rows: torch.Tensor, alpha: float) -> None:
        rows.add_(codes.view(self.dtype), alpha=alpha)
