"""What a bound method knows of its worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .clock import Clock

if TYPE_CHECKING:
    from .comm.base import Comm
    from .vector import Flat


@dataclass
class Context:
    """One worker as its methods see it: who it is, whom it reaches, what it trains."""

    comm: Comm
    clock: Clock = field(default_factory=Clock)
    seed: int = 0
    examples: int = 0  # in this worker's block
    share: float = 0.0  # this worker's part of all examples; 1 / size when all hold as many
    reference: float = 1.0  # the batch size that weighs 1: the same on all workers
    flat: Flat | None = None

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    def rng(self, *purpose: int) -> np.random.Generator:
        """A stream that depends on the seed, this worker and the purpose alone: nothing to store, nothing shared."""
        return np.random.default_rng([self.seed, self.rank, *purpose])
