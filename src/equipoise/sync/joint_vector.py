"""The model and a second vector in one buffer, so that both travel in one message without packing."""

from __future__ import annotations

import torch

from ..core.vector import Flat
from .mixing import Mixing


class JointVector:
    """[x | y]: moves the model to the front of a buffer; `tail` is y, zero at first."""

    def __init__(self, flat: Flat, elements: int):
        self._split = len(flat)
        self.buffer = flat.widen(elements)

    @property
    def tail(self) -> torch.Tensor:
        return self.buffer[self._split :]

    def mix(self, mixing: Mixing, x: torch.Tensor) -> None:
        """One round of gossip on both, in place. `x` must be the model that was moved here."""
        assert x.data_ptr() == self.buffer.data_ptr(), "the model no longer lies at the front of its buffer"
        mixing.mix(self.buffer)
