"""Small integers in few bits, and numbers as bytes. A code has all rows of one kind of number, then all of the next."""

from __future__ import annotations

import torch


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of a row of `count` integers."""
    return sum(-(-count * width // 8) for width, _ in _fields(bits))


def pack(integers: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows of integers in [0, 2^bits) as bytes.

    The integers are cut into fields of 8, 4, 2 and 1 bits, as `bits` is a sum of these: 12 = 8 + 4.
    """
    fields = _fields(bits)
    if len(fields) == 1:
        return _pack(integers.to(torch.uint8), bits)
    return torch.cat(
        [_pack(((integers >> place) & ((1 << width) - 1)).to(torch.uint8), width) for width, place in fields]
    )


def unpack(codes: torch.Tensor, bits: int, rows: int, count: int) -> torch.Tensor:
    """The integers of one code or of several, `count` in each row: uint8 where they are one field, else int64."""
    fields = _fields(bits)
    if len(fields) == 1:
        return _unpack(codes, bits, rows, count)
    integers = torch.zeros(*codes.shape[:-1], rows, count, dtype=torch.int64, device=codes.device)
    for width, place in fields:
        field, codes = codes.tensor_split([rows * -(-count * width // 8)], dim=-1)
        integers.add_(_unpack(field, width, rows, count), alpha=1 << place)
    return integers


def lanes(flat: torch.Tensor, bits: int) -> tuple[torch.Tensor, ...]:
    """The numbers that share bytes: lane j, one of 8 / bits parts of equal length, has the bits from j * bits on."""
    return flat.view(8 // bits, -1).unbind(0)


def whole_bytes(rows: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows whose codes end with a byte, filled up with zeros."""
    missing = -rows.shape[1] % (8 // bits)
    return torch.nn.functional.pad(rows, (0, missing)) if missing else rows


def _fields(bits: int) -> list[tuple[int, int]]:
    """Widths of fields whose sum is `bits`, and their places in the integer."""
    fields, place = [], 0
    while place < bits:
        width = min(8, 1 << ((bits - place).bit_length() - 1))
        fields.append((width, place))
        place += width
    return fields


def _pack(integers: torch.Tensor, bits: int) -> torch.Tensor:
    first, *others = lanes(whole_bytes(integers, bits).reshape(-1), bits)
    codes = first.clone()
    for number, lane in enumerate(others, 1):
        codes |= lane << (number * bits)
    return codes


def _unpack(codes: torch.Tensor, bits: int, rows: int, count: int) -> torch.Tensor:
    if bits < 8:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device).unsqueeze(1)
        codes = (codes.unsqueeze(-2) >> shifts).bitwise_and_((1 << bits) - 1)
    return codes.reshape(*codes.shape[: codes.dim() - 1 - (bits < 8)], rows, -1)[..., :count]


def as_bytes(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.contiguous().view(-1).view(torch.uint8)


def as_numbers(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy, since bytes may begin at an address where no number may."""
    return codes.clone(memory_format=torch.contiguous_format).view(dtype)
