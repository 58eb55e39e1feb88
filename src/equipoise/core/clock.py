"""The counters of one worker: the only ones of a run besides the ledger."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

_OF_THE_STEP = ("loss", "largest_batch", "sound")  # known only while a step is taken


@dataclass
class Clock:
    """Where a worker is. The loop writes it and methods read it; a sync adds to `rounds` for each communication.

    A *step* is one turn of the loop: one optimizer step (or an idle turn of a worker without examples). A *round* is
    one communication. *samples* are examples this worker consumed, `consumed` those of all workers.
    """

    epoch: int = 0
    step: int = 0
    samples: int = 0
    rounds: int = 0
    seconds: float = 0.0
    busy: float = 0.0  # seconds of them in which gradients were computed; simulated ones where time is
    consumed: int = 0  # examples taken by all workers since the run began: the same on all of them
    # Of the step under way:
    due: bool = False  # does a round belong to it?
    batch: int = 0  # examples in this worker's gradient; 0 for a worker that has none left
    lr: float = 0.0
    sound: bool = True  # are this worker's model and state finite?
    loss: float = math.nan  # of this worker's batch, where the loop knows it
    largest_batch: float = 1.0  # of all workers; gradients are weighted in units of it

    def state_dict(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if name not in _OF_THE_STEP}

    def load_state_dict(self, state: dict[str, float]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
