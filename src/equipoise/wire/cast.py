"""Wires that round every element to a narrower floating-point format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from .pack import as_bytes, as_numbers
from .rows import CACHED, Parts, RandomSource, RowWire


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

    def encode_rows(
        self, vector: torch.Tensor, length: int, parts: Parts, source: RandomSource, *, subtract: bool
    ) -> list[torch.Tensor]:
        most = torch.finfo(self.dtype).max
        numbers = torch.empty(len(vector), dtype=self.dtype, device=vector.device)
        for part, out in zip(torch.split(vector, CACHED), torch.split(numbers, CACHED), strict=True):
            out.copy_(part.clamp(-most, most))
            if subtract:
                part.sub_(out.float())
        return [as_bytes(numbers[first * length : last * length]) for first, last in parts]

    def add_decoded_rows(self, codes: Sequence[torch.Tensor], vector: torch.Tensor, length: int, alpha: float) -> None:
        parts = zip(*(torch.split(code, CACHED * self.dtype.itemsize) for code in codes), strict=True)
        for part, coded in zip(torch.split(vector, CACHED), parts, strict=True):
            for bytes in coded:
                # Converted first: torch is slow in adding numbers of two kinds.
                part.add_(as_numbers(bytes, self.dtype).float(), alpha=alpha)
