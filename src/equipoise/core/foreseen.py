"""How long a run is and how its learning rate decays, by what the loop knows or by what the user says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from .context import Context

DECAYS = (None, "cosine", "linear", "constant")
EPOCHS_HELP = "length of the run, in a loop of your own"
DECAY_HELP = "of the learning rate, in a loop of your own (none: cosine)"


class Foreseen(NamedTuple):
    samples: float  # of all workers, to the end
    decay: Callable[[float], float]  # the factor of the learning rate at a part of the run, 1 at its peak

    def done(self, consumed: int) -> float:
        return min(1.0, consumed / self.samples)


def foreseen(context: Context, epochs: float | None, decay: str | None) -> Foreseen | None:
    """None where the length is not known. epochs, decay: options of a method, for loops that do not tell."""
    known = context.forecast
    samples = known.samples if known is not None else 0.0
    if epochs is not None:
        samples = epochs * context.worker.total_examples
    if not samples:
        return None
    if decay is None and known is not None and known.decay is not None:
        return Foreseen(samples, known.decay)
    return Foreseen(samples, {"linear": _linear, "constant": _constant}.get(decay or "", _cosine))


def _cosine(done: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * done))


def _linear(done: float) -> float:
    return 1.0 - done


def _constant(done: float) -> float:
    return 1.0
