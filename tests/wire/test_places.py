"""Places of chosen elements: all are found again, in as many bytes as declared, and in few."""

from __future__ import annotations

import math

import pytest
import torch

from equipoise.wire.places import pack_places, place_bytes, unpack_places

LENGTHS = (2, 3, 7, 64, 65, 1000, 4096, 4097)


def counts(length: int) -> set[int]:
    return {count for count in (1, 2, length // 64, length // 3, length - 1) if 0 < count < length}


@pytest.mark.parametrize("length", LENGTHS)
def test_places_are_found_again(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    for count in counts(length):
        drawn = [torch.randperm(length, generator=generator)[:count].sort().values for _ in range(5)]
        ends = [torch.arange(count), torch.arange(length - count, length)]
        places = torch.stack([*drawn, *ends])
        code = pack_places(places, length)
        assert len(code) == len(places) * place_bytes(length, count)
        both = unpack_places(torch.stack((code, pack_places(places.flip(0), length))), len(places), length, count)
        assert torch.equal(both, torch.stack((places, places.flip(0))))


def test_few_bytes() -> None:
    """Never more than plain integers; at 64 of 4,096 within an eighth of what any code needs for all such sets."""
    for length in LENGTHS:
        for count in counts(length):
            plain = math.ceil(count * max(1, math.ceil(math.log2(length))) / 8) + 2  # fields end with whole bytes
            assert place_bytes(length, count) <= plain
    least = math.log2(math.comb(4096, 64)) / 8
    assert least < place_bytes(4096, 64) == 64 < 1.125 * least
    assert place_bytes(4096, 4096) == 0
