"""Rows as integers of few bits times one scale per row, and the wires that are no more than this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core.method import option
from .pack import as_bytes, as_numbers, lanes, packed_bytes, whole_bytes
from .rows import Parts, RandomSource, RowWire, few_rows, put_back, rows_of

SCALE = torch.bfloat16  # the range of float32; an integer of 8 bits times a scale is exact in float32
ROUND_UP = 1 + 2**-8 + 2**-15  # a number times this, rounded to the dtype above, is not less than the number
SUBNORMAL = 2**-126 - 2**-149  # the largest of float32


def quantised_bytes(length: int, bits: int) -> int:
    return SCALE.itemsize + packed_bytes(length, bits)


def quantise(
    vector: torch.Tensor,
    length: int,
    bits: int,
    parts: Parts,
    generator: torch.Generator | None = None,
    *,
    subtract: bool = False,
) -> list[torch.Tensor]:
    """The codes of parts of the rows: scales s, and q in [-h, h - 1] with h = 2^(bits - 1); x is decoded as s q.

    The scale has the sign with which the largest element goes to -h: so all 2^bits values are used. With a generator
    rounding is stochastic, and no element may lie beyond h - 1; without one it is to nearest, up to h - 1/2.
    `subtract` leaves x - s q in the vector.
    """
    half, few, width = 1 << (bits - 1), few_rows(length), packed_bytes(length, bits)
    scale = scales(vector, length, half, half - 1 if generator is not None else half - 0.5)
    inverse = scale.reciprocal().nan_to_num_(torch.nan, 0.0, 0.0)
    sent = scale.to(SCALE)
    codes = []
    for first, last in parts:
        size = (last - first) * SCALE.itemsize
        code = torch.empty(size + (last - first) * width, dtype=torch.uint8, device=vector.device)
        code[:size] = as_bytes(sent[first:last])
        for flat, s, over_s, out in zip(
            torch.split(vector[first * length : last * length], few * length),
            torch.split(scale[first:last], few),
            torch.split(inverse[first:last], few),
            torch.split(code[size:].view(torch.int8), few * width),
            strict=True,
        ):
            rows = rows_of(flat, length)
            integers = rows * over_s
            if generator is None:
                integers.round_()
            else:
                integers.add_(
                    torch.rand(rows.shape, generator=generator, dtype=rows.dtype, device=rows.device)
                ).floor_()
            _pack(integers.clamp_(-half, half - 1), bits, out)
            if subtract:
                put_back(rows.addcmul_(integers, s, value=-1.0), flat)
        codes.append(code)
    return codes


def scales(vector: torch.Tensor, length: int, half: int, most: float) -> torch.Tensor:
    """The least scales, one column of numbers of the dtype that is sent, for integers from -half to most."""
    few = few_rows(length)
    high = vector.new_empty(-(-len(vector) // length), 1)
    low = torch.empty_like(high)
    for flat, highest, lowest in zip(
        torch.split(vector, few * length), torch.split(high, few), torch.split(low, few), strict=True
    ):
        rows = rows_of(flat, length)
        torch.amax(rows, 1, keepdim=True, out=highest)
        torch.amin(rows, 1, keepdim=True, out=lowest)
    low.neg_()
    positive, negative = torch.maximum(low / half, high / most), torch.maximum(high / half, low / most)
    scale = torch.where(positive <= negative, positive, negative.neg()).mul_(ROUND_UP).to(SCALE).float()
    return torch.nn.functional.hardshrink(scale, SUBNORMAL)  # 1 / s must not overflow


def add_dequantised(codes: Sequence[torch.Tensor], vector: torch.Tensor, length: int, bits: int, alpha: float) -> None:
    """vector <- vector + alpha s q, for one code after the other."""
    few, width = few_rows(length), packed_bytes(length, bits)
    size = -(-len(vector) // length) * SCALE.itemsize
    scales = [torch.split(as_numbers(code[:size], SCALE).float().mul_(alpha).unsqueeze(1), few) for code in codes]
    packed = [torch.split(code[size:].view(torch.int8), few * width) for code in codes]
    for number, flat in enumerate(torch.split(vector, few * length)):
        rows = rows_of(flat, length)
        for s, q in zip(scales, packed, strict=True):
            rows.addcmul_(_unpack(q[number], bits, *rows.shape), s[number])
        put_back(rows, flat)


def _pack(integers: torch.Tensor, bits: int, out: torch.Tensor) -> None:
    """Integers in [-h, h - 1] as bytes: h is added in all lanes but the last, which has the sign of an int8.

    Sums of whole numbers of float32 are exact, and torch converts them faster to int8 than to uint8.
    """
    *others, code = lanes(whole_bytes(integers, bits).view(-1), bits)
    for lane in reversed(others):
        code = torch.add(lane, code, alpha=1 << bits).add_(1 << (bits - 1))
    out.copy_(code)


def _unpack(code: torch.Tensor, bits: int, rows: int, length: int) -> torch.Tensor:
    if bits == 8:
        return code.float().view(rows, length)
    integers = torch.empty(len(code) * (8 // bits), dtype=torch.float32, device=code.device)
    *others, last = lanes(integers, bits)
    for number, lane in enumerate(others):
        field = (code >> (number * bits) if number else code) & ((1 << bits) - 1)
        lane.copy_(field.sub_(1 << (bits - 1)))
    last.copy_(code >> (8 - bits))
    return integers.view(rows, -1)[:, :length]


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

    def encode_rows(
        self, vector: torch.Tensor, length: int, parts: Parts, source: RandomSource, *, subtract: bool
    ) -> list[torch.Tensor]:
        generator = source() if self.rounding == "stochastic" else None
        return quantise(vector, length, self.bits, parts, generator, subtract=subtract)

    def add_decoded_rows(self, codes: Sequence[torch.Tensor], vector: torch.Tensor, length: int, alpha: float) -> None:
        add_dequantised(codes, vector, length, self.bits, alpha)
