"""The largest elements of each row: their places in few bits, and their values in 32, 8 or 2."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..core.method import option
from .pack import as_bytes, as_numbers, pack, packed_bytes, unpack
from .quantise import dequantise, quantise, quantised_bytes
from .rows import RowWire

LEVEL = torch.bfloat16  # of the magnitudes of 2-bit values
GROUPS = 8


@dataclass
class SparseWire(RowWire):
    """Final here: the options of a wire that sends the largest elements, and how its messages are summed."""

    keep: float = option(1 / 64, help="part of each block that is sent: the largest", above=0, most=1)
    values: int = option(
        2,
        help="bits of a value: 32 float32, 8 integers with one scale per block, 2 a sign and one of two magnitudes",
        choices=(2, 8, 32),
    )
    block: int = option(4096, help="elements among which the largest are chosen", least=1)
    reduce: str = option(
        "all-gather",
        help="all-gather: messages go to all workers; all-to-all: sums are coded again, bytes do not grow with workers",
        choices=("all-gather", "all-to-all"),
    )

    def collective(self) -> str:
        return self.reduce

    def row_length(self) -> int:
        return self.block


def kept(length: int, keep: float) -> int:
    """How many elements of a row are sent."""
    return min(length, math.ceil(keep * length))


def sparse_bytes(length: int, keep: float, values: int) -> int:
    count = kept(length, keep)
    return _index_bytes(length, count) + _value_bytes(count, values)


def encode_sparse(rows: torch.Tensor, keep: float, values: int) -> torch.Tensor:
    """The codes of the rows: the places, unless all elements are sent, and the values."""
    length = rows.shape[1]
    count = kept(length, keep)
    if count == length and values != 2:
        return _encode_values(rows.clone(), values)  # float32 values are sent as they are, and the rows may change
    indices = largest(rows, count)
    coded = _encode_values(rows.gather(1, indices), values)
    if count == length:
        return _in_order(coded, indices)
    return torch.cat([pack(indices, _index_bits(length)), coded], dim=1)


def decode_sparse(codes: torch.Tensor, length: int, keep: float, values: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The places and the values of the elements that were sent."""
    count = kept(length, keep)
    places, coded = codes.tensor_split([_index_bytes(length, count)], dim=1)
    if count == length:
        indices = torch.arange(length, device=codes.device).expand(len(codes), length)
    else:
        indices = unpack(places, _index_bits(length), count).long()
    return indices, _decode_values(coded, count, values)


def largest(rows: torch.Tensor, count: int) -> torch.Tensor:
    """The places of the elements with the largest magnitudes, in descending order.

    The bits of magnitudes are in the order of the magnitudes, NaN above all, and integers are compared faster. A
    place is among the largest only if its group is among the groups with the largest maxima: first these are found.
    """
    magnitudes = rows.view(torch.int32) & 0x7FFFFFFF
    batch, length = rows.shape
    if length % GROUPS or 2 * GROUPS * count > length:
        return magnitudes.topk(count, dim=1).indices
    groups = length // GROUPS  # elements whose places are equal modulo this number are one group
    members = magnitudes.view(batch, GROUPS, groups)
    best = members.amax(1).topk(count, dim=1, sorted=False).indices
    candidates = members.gather(2, best.unsqueeze(1).expand(batch, GROUPS, count)).flatten(1)
    chosen = candidates.topk(count, dim=1).indices
    return best.gather(1, chosen % count).add_(chosen // count, alpha=groups)


def two_levels(magnitudes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two magnitudes with the least squared error for each row of magnitudes in descending order, and how many
    elements take the first.

    If the first n take their mean and the others theirs, the error is the sum of squares less S_1^2 / n +
    S_2^2 / (k - n), with S the sums of the two parts. All n are tried. Sums are relative to the largest, so that no
    square overflows.
    """
    count = magnitudes.shape[1]
    unit = magnitudes[:, :1].clamp_min(torch.finfo(torch.float32).tiny)
    sizes = torch.arange(1, count + 1, device=magnitudes.device)
    others = (count - sizes).clamp_min(1)
    sums = (magnitudes / unit).cumsum(1)
    rest = sums[:, -1:] - sums
    split = (sums.square() / sizes + rest.square() / others).argmax(1, keepdim=True)
    means = torch.cat([(sums / sizes).gather(1, split), (rest / others).gather(1, split)], dim=1)
    return means.mul_(unit), split + 1


def _index_bits(length: int) -> int:
    return max(1, (length - 1).bit_length())


def _index_bytes(length: int, count: int) -> int:
    return 0 if count == length else packed_bytes(count, _index_bits(length))


def _value_bytes(count: int, values: int) -> int:
    if values == 2:
        return 2 * LEVEL.itemsize + packed_bytes(count, 2)
    return quantised_bytes(count, 8) if values == 8 else 4 * count


def _encode_values(sent: torch.Tensor, values: int) -> torch.Tensor:
    """Codes of the values; for 2 bits they are in descending order of magnitude."""
    if values == 32:
        return as_bytes(sent)
    if values == 8:
        return quantise(sent, 8)
    levels, first = two_levels(sent.abs())
    smaller = torch.arange(sent.shape[1], device=sent.device) >= first
    codes = smaller.to(torch.uint8) | ((sent < 0).to(torch.uint8) << 1)
    return torch.cat([as_bytes(levels.to(LEVEL)), pack(codes, 2)], dim=1)


def _in_order(coded: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """2-bit values of a whole row in the order of the places, which are not sent."""
    start, count = 2 * LEVEL.itemsize, indices.shape[1]
    codes = unpack(coded[:, start:], 2, count)
    return torch.cat([coded[:, :start], pack(torch.empty_like(codes).scatter_(1, indices, codes), 2)], dim=1)


def _decode_values(coded: torch.Tensor, count: int, values: int) -> torch.Tensor:
    if values == 32:
        return as_numbers(coded, torch.float32)
    if values == 8:
        scale, integers = dequantise(coded, 8, count)
        return integers.mul_(scale)
    levels = as_numbers(coded[:, : 2 * LEVEL.itemsize], LEVEL).float()
    codes = unpack(coded[:, 2 * LEVEL.itemsize :], 2, count).long()
    return torch.cat([levels, -levels], dim=1).gather(1, codes)
