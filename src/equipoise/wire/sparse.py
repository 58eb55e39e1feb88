"""The largest elements of each row: their places in few bits, and their values in 32, 8 or 2."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..core.method import option
from .largest import descending, largest, places_in_rows, values_at
from .pack import as_bytes, as_numbers, pack, packed_bytes, unpack
from .places import pack_places, place_bytes, unpack_places
from .quantise import add_dequantised, quantise, quantised_bytes
from .rows import Parts, RandomSource, RowWire, rows_of

LEVEL = torch.bfloat16  # of the magnitudes of 2-bit values


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

    @abstractmethod
    def encode_part(self, vector: torch.Tensor, length: int) -> torch.Tensor:
        """The code of the rows."""

    def encode_rows(
        self, vector: torch.Tensor, length: int, parts: Parts, source: RandomSource, *, subtract: bool
    ) -> list[torch.Tensor]:
        codes = []
        for first, last in parts:
            part = vector[first * length : last * length]
            codes.append(self.encode_part(part, length))
            if subtract:
                self.add_decoded_rows(codes[-1:], part, length, -1.0)
        return codes


def kept(length: int, keep: float) -> int:
    """How many elements of a row are sent."""
    return min(length, math.ceil(keep * length))


def sparse_bytes(length: int, keep: float, values: int) -> int:
    count = kept(length, keep)
    return place_bytes(length, count) + _value_bytes(count, values)


def encode_sparse(vector: torch.Tensor, length: int, keep: float, values: int) -> torch.Tensor:
    """The code of the rows: the places in ascending order, unless all elements are sent, and the values."""
    count = kept(length, keep)
    if count == length:
        return torch.cat(_encode_values(rows_of(vector, length), values))
    indices = largest(vector, length, count)
    sent = values_at(vector, indices, length)
    return torch.cat([pack_places(indices, length), *_encode_values(sent, values)])


def decode_sparse(
    codes: Sequence[torch.Tensor], rows: int, length: int, keep: float, values: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The places and the values of the elements that were sent: codes x rows x elements."""
    count, together = kept(length, keep), torch.stack(list(codes))
    if count == length:
        indices = torch.arange(length, device=together.device).expand(len(codes), rows, length)
        return indices, _decode_values(together, rows, count, values)
    places, coded = together.tensor_split([rows * place_bytes(length, count)], dim=1)
    return unpack_places(places, rows, length, count), _decode_values(coded, rows, count, values)


def add_at(vector: torch.Tensor, indices: torch.Tensor, values: torch.Tensor, length: int) -> None:
    """vector <- vector + values at these places of its rows; those behind its end, in the last row, do not count."""
    places = places_in_rows(indices, length)
    if len(vector) % length:
        values[:, -1].masked_fill_(indices[:, -1] >= len(vector) % length, 0.0)
        places.clamp_(max=len(vector) - 1)
    for place, value in zip(places, values.flatten(1), strict=True):  # one code at a time: its places differ
        vector.scatter_add_(0, place, value)


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


def _value_bytes(count: int, values: int) -> int:
    if values == 2:
        return 2 * LEVEL.itemsize + packed_bytes(count, 2)
    return quantised_bytes(count, 8) if values == 8 else 4 * count


def _encode_values(sent: torch.Tensor, values: int) -> list[torch.Tensor]:
    if values == 32:
        return [as_bytes(sent)]
    if values == 8:
        return quantise(sent.view(-1), sent.shape[1], 8, [(0, len(sent))])
    magnitudes = sent.abs()
    ordered = descending(magnitudes)
    levels, first = two_levels(ordered)
    smaller = magnitudes < ordered.gather(1, first - 1)
    codes = smaller.view(torch.uint8) | ((sent < 0).view(torch.uint8) << 1)
    return [as_bytes(levels.to(LEVEL)), pack(codes, 2)]


def _decode_values(codes: torch.Tensor, rows: int, count: int, values: int) -> torch.Tensor:
    if values == 32:
        return as_numbers(codes, torch.float32).view(-1, rows, count)
    if values == 8:
        numbers = torch.zeros(len(codes), rows * count, dtype=torch.float32, device=codes.device)
        for code, out in zip(codes, numbers, strict=True):
            add_dequantised([code], out, count, 8, 1.0)
        return numbers.view(-1, rows, count)
    size = 2 * LEVEL.itemsize * rows
    levels = as_numbers(codes[:, :size], LEVEL).float().view(-1, rows, 2)
    chosen = unpack(codes[:, size:], 2, rows, count).long()
    return torch.cat([levels, -levels], dim=2).gather(2, chosen)
