"""Small integers in few bits, and numbers as bytes, row by row."""

from __future__ import annotations

import torch


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of a row of `count` integers."""
    return sum(-(-count * width // 8) for width, _ in _fields(bits))


def pack(integers: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows of integers in [0, 2^bits) as rows of bytes.

    The integers are cut into fields of 8, 4, 2 and 1 bits, as `bits` is a sum of these: 12 = 8 + 4.
    """
    fields = _fields(bits)
    if len(fields) == 1:
        return _pack(integers.to(torch.uint8), bits)
    return torch.cat(
        [_pack(((integers >> place) & ((1 << width) - 1)).to(torch.uint8), width) for width, place in fields], dim=1
    )


def unpack(codes: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """The first `count` integers of each row: uint8 up to 8 bits where they are one field, else int64."""
    fields = _fields(bits)
    if len(fields) == 1:
        return _unpack(codes, bits)[:, :count]
    integers = torch.zeros(len(codes), count, dtype=torch.int64, device=codes.device)
    for width, place in fields:
        field, codes = codes.tensor_split([-(-count * width // 8)], dim=1)
        integers |= _unpack(field, width)[:, :count].long() << place
    return integers


def _fields(bits: int) -> list[tuple[int, int]]:
    """Widths of fields whose sum is `bits`, and their places in the integer."""
    fields, place = [], 0
    while place < bits:
        width = min(8, 1 << ((bits - place).bit_length() - 1))
        fields.append((width, place))
        place += width
    return fields


def _pack(integers: torch.Tensor, bits: int) -> torch.Tensor:
    """A row is cut into 8 / bits parts of the same length; part j fills the bits from j * bits on of every byte."""
    parts = 8 // bits
    missing = -integers.shape[1] % parts
    if missing:
        integers = torch.nn.functional.pad(integers, (0, missing))
    lanes = integers.view(len(integers), parts, -1)
    codes = lanes[:, 0].clone()
    for part in range(1, parts):
        codes |= lanes[:, part] << (part * bits)
    return codes


def _unpack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    parts = 8 // bits
    if parts == 1:
        return codes
    lanes = codes.new_empty(len(codes), parts, codes.shape[1])
    for part in range(parts):
        torch.bitwise_right_shift(codes, part * bits, out=lanes[:, part])
    return lanes.bitwise_and_((1 << bits) - 1).flatten(1)


def as_bytes(numbers: torch.Tensor) -> torch.Tensor:
    """Rows of numbers as rows of bytes."""
    return numbers.contiguous().view(torch.uint8)


def as_numbers(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rows of bytes as rows of numbers. A copy, since bytes may begin at an address where no number may."""
    return codes.clone(memory_format=torch.contiguous_format).view(dtype)
