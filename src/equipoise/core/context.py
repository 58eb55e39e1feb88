"""What a bound method knows of its worker."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .clock import Clock

if TYPE_CHECKING:
    import torch

    from ..comm.base import Comm
    from ..comm.piggyback import Rider
    from ..loop.fresh_gradients import Probe
    from .vector import Flat


def unheard(event: str, **fields: Any) -> None:
    """Where nobody listens to events."""


@dataclass
class Context:
    """One worker as its methods see it: who it is, whom it reaches, what it trains."""

    comm: Comm
    clock: Clock = field(default_factory=Clock)
    seed: int = 0
    examples: int = 0  # in this worker's block
    whole: int = 0  # examples of all workers
    share: float = 0.0  # this worker's part of all examples; 1 / size when all hold as many
    shares: list[float] = field(default_factory=list)  # of all workers by rank, where they are known
    mean_by_share: bool = False  # does the sync weigh models by share? Then the mean model does too
    reference: float = 1.0  # the batch size that weighs 1: the same on all workers
    flat: Flat | None = None
    loss: float = math.nan  # of this worker's last batch, where the loop tells
    probe: Probe | None = None  # for gradients on fresh examples, where the loop can take them
    consumed: int = 0  # examples taken by all workers since the run began: the same on all of them
    optimizer: torch.optim.Optimizer | None = None
    clip: float | None = None  # the norm to which the loop clips gradients
    rider: Rider | None = None  # what travels with the rounds of the sync,
    averages: str = ""  # and of what a round gives the mean anyway: "gradient" or "parameters"
    emit: Callable[..., None] = unheard  # emit(event, **fields) writes a line to the events
    example_gradients: Callable[[int], list[torch.Tensor]] | None = None  # of so many examples of this step's batch

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    def rng(self, *purpose: int) -> np.random.Generator:
        """A stream that depends on the seed, this worker and the purpose alone: nothing to store, nothing shared."""
        return np.random.default_rng([self.seed, self.rank, *purpose])
