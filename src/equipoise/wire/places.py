"""The places of chosen elements in few bits (Elias-Fano codes).

Of each of k ascending places below L the `low` last bits are packed. The high parts h ascend, so k + U bits hold them
all, where U is the largest: bit h_j + j is set for the j-th place. A set bit means "the next place", a clear one "the
next high part". With 2^low near L / k a place takes about 2 + log2(L / k) bits instead of log2 L: 8 instead of 12 for
64 of 4,096. For sets that are all equally likely no code has less than 7.4.
Reference: Elias, Efficient Storage and Retrieval by Content and Address of Static Files, Journal of the ACM 1974.
"""

from __future__ import annotations

import functools

import torch

from .pack import pack, packed_bytes, unpack


def place_bytes(length: int, count: int) -> int:
    """Bytes of the places of a row; none where all elements are chosen."""
    return 0 if count == length else _bytes(length, count, low_bits(length, count))


def pack_places(places: torch.Tensor, length: int) -> torch.Tensor:
    """Rows of ascending places as bytes."""
    count = places.shape[1]
    low = low_bits(length, count)
    if low == _bits(length):
        return pack(places, low)
    high = (places >> low) + torch.arange(count, device=places.device)
    marks = torch.zeros(len(places), _marks(length, count, low), dtype=torch.uint8, device=places.device)
    parts = [pack(marks.scatter_(1, high, 1), 1)]
    if low:
        parts.append(pack(places & ((1 << low) - 1), low))
    return torch.cat(parts)


def unpack_places(codes: torch.Tensor, rows: int, length: int, count: int) -> torch.Tensor:
    """The places of several codes: codes x rows x count."""
    low = low_bits(length, count)
    if low == _bits(length):
        return unpack(codes, low, rows, count).long()
    width = _marks(length, count, low)
    marked, rest = codes.tensor_split([rows * packed_bytes(width, 1)], dim=1)
    marks = unpack(marked, 1, rows, width)
    if marks.device.type == "cpu":
        at = marks.flatten().nonzero().remainder_(width)
    else:  # without a number that the host must know
        at = marks.argsort(dim=2, descending=True, stable=True)[..., :count]
    places = at.view(len(codes), rows, count).sub(torch.arange(count, device=codes.device)) << low
    return places.add_(unpack(rest, low, rows, count)) if low else places


@functools.lru_cache(maxsize=64)
def low_bits(length: int, count: int) -> int:
    """How many bits of a place are packed as they are: all of them where that is as short."""
    return min(range(_bits(length), -1, -1), key=lambda low: _bytes(length, count, low))


def _bytes(length: int, count: int, low: int) -> int:
    marks = 0 if low == _bits(length) else packed_bytes(_marks(length, count, low), 1)
    return marks + packed_bytes(count, low)


def _marks(length: int, count: int, low: int) -> int:
    return count + ((length - 1) >> low)


def _bits(length: int) -> int:
    return max(1, (length - 1).bit_length())
