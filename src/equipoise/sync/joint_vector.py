"""The model and a second vector in one buffer, so that both travel in one message without packing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..core.vector import Flat
from .mixing import Mixing
from .wide import ITEMSIZE, wide_zeros


class JointVector:
    """[x | y]: moves the model to the front of a buffer; `tail` is y, zero at first.

    wide: y is at least float32. A narrower model then stays where it is, and is copied there and back in each round.
    """

    def __init__(self, flat: Flat, elements: int, *, wide: bool = False):
        self._split = len(flat)
        self._apart = wide and flat.x.itemsize < ITEMSIZE
        self.buffer = wide_zeros(flat.x, self._split + elements) if self._apart else flat.widen(elements)

    @property
    def tail(self) -> torch.Tensor:
        return self.buffer[self._split :]

    def mix(self, mixing: Mixing, x: torch.Tensor) -> None:
        """One round of gossip on both, in place. `x` must be the model that was moved here."""
        with self.holding(x) as both:
            mixing.mix(both)

    @contextmanager
    def holding(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        """The buffer with the model at its front; `x` has what became of it afterwards."""
        if not self._apart:
            assert x.data_ptr() == self.buffer.data_ptr(), "the model no longer lies at the front of its buffer"
            yield self.buffer
            return
        self.buffer[: self._split].copy_(x)
        yield self.buffer
        x.copy_(self.buffer[: self._split])
