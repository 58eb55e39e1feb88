"""Rows as integers of few bits times one scale per row, and the wires that are no more than this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import option
from .base import Draw
from .pack import as_bytes, as_numbers, pack, packed_bytes, unpack
from .rows import RowWire

SCALE = torch.bfloat16  # the range of float32; an integer of 8 bits times a scale is exact in float32
ROUND_UP = 1 + 2**-8 + 2**-15  # a number times this, rounded to the dtype above, is not less than the number


def quantised_bytes(length: int, bits: int) -> int:
    return SCALE.itemsize + packed_bytes(length, bits)


def quantise(rows: torch.Tensor, bits: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """Codes of the rows: a scale s, and q in [-h, h - 1] with h = 2^(bits - 1); x is decoded as s q.

    The scale has the sign with which the largest element goes to -h: so all 2^bits values are used. With a generator
    rounding is stochastic, and no element may lie beyond h - 1; without one it is to nearest, up to h - 1/2.
    """
    half = 1 << (bits - 1)
    most = half - 1 if generator is not None else half - 0.5
    high, low = rows.amax(1, keepdim=True), rows.amin(1, keepdim=True).neg_()
    positive, negative = torch.maximum(low / half, high / most), torch.maximum(high / half, low / most)
    scale = torch.where(positive <= negative, positive, -negative)
    scale = (scale * ROUND_UP).to(SCALE).float()
    scale = torch.where(scale.abs() < torch.finfo(torch.float32).tiny, 0.0, scale)  # 1 / s must not overflow
    integers = rows * torch.where(scale == 0, 0.0, 1 / scale)
    if generator is None:
        integers.round_()
    else:
        integers.add_(torch.rand(rows.shape, generator=generator, device=rows.device)).floor_()
    integers.clamp_(-half, half - 1).add_(half)
    return torch.cat([as_bytes(scale.to(SCALE)), pack(integers.to(torch.uint8), bits)], dim=1)


def dequantise(codes: torch.Tensor, bits: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales, one column, and the integers, both float32."""
    scale = as_numbers(codes[:, : SCALE.itemsize], SCALE).float()
    integers = unpack(codes[:, SCALE.itemsize :], bits, length).float()
    return scale, integers.sub_(1 << (bits - 1))


@dataclass
class Quantised(RowWire):
    """Final here: everything but the number of bits. A block is a row."""

    dense: ClassVar[bool] = True
    bits: ClassVar[int]

    block: int = option(256, help="elements that share a scale", least=1)
    rounding: str = option("nearest", help="stochastic: unbiased, and noisier", choices=("nearest", "stochastic"))

    def collective(self) -> str:
        return "all-to-all"

    def row_length(self) -> int:
        return self.block

    def row_bytes(self, length: int) -> int:
        return quantised_bytes(length, self.bits)

    def encode_rows(self, rows: torch.Tensor, draw: Draw) -> torch.Tensor:
        return quantise(rows, self.bits, draw.generator(rows.device) if self.rounding == "stochastic" else None)

    def add_decoded_rows(self, codes: torch.Tensor, rows: torch.Tensor, alpha: float) -> None:
        scale, integers = dequantise(codes, self.bits, rows.shape[1])
        rows.addcmul_(integers, scale.mul_(alpha))
