"""Short hashes by which workers notice that they differ. 48 bits: a float64 holds them exactly."""

from __future__ import annotations

import hashlib
import math
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

BITS = 48
_WIDTH = 509  # words in a row of `fold`: a prime, so that no layer's rows line up with it


def mark(value: Any) -> int:
    """Of bytes, or of a value by its `repr`; never 0, which stands for nothing."""
    data = value if isinstance(value, bytes) else repr(value).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=BITS // 8).digest(), "big") or 1


def mark_link(round: int, source: int, target: int, weight: float) -> int:
    """Of one link of a graph; sums of these are compared. A weight counts with six digits."""
    x = (((round << 20) ^ source) << 20) ^ target ^ (round_off(weight) << 61)
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        x = (x ^ (x >> 61) ^ (x >> 31)) * factor & (1 << 122) - 1
    return (x >> 61) & (1 << BITS) - 1


def round_off(weight: float) -> int:
    """In millionths. Shares and weights are simple fractions, which often lie half-way between two of them, and the two
    ends of a link compute them with other last bits: so steps are not at the halves.
    """
    return math.floor(weight * 1e6 + 1 / math.pi)


def mark_sequence(sequence: np.ndarray) -> int:
    """Of an array in its order."""
    import numpy as np

    return zlib.crc32(np.ascontiguousarray(sequence).data) or 1


def fold(tensor: torch.Tensor) -> int:
    """Of the bits of a tensor, in one pass over its memory: rows of words are combined by exclusive or.

    Any single change shows. Two changes hide each other if they flip the same bits of the same column.
    """
    import numpy as np
    import torch

    raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    words = raw[: len(raw) // 8 * 8].view(np.uint64)
    whole = len(words) // _WIDTH * _WIDTH
    rows = np.bitwise_xor.reduce(words[:whole].reshape(-1, _WIDTH), axis=0)
    return mark(rows.tobytes() + words[whole:].tobytes() + raw[len(words) * 8 :].tobytes())
