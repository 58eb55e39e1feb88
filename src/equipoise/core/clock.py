"""The clock of one worker: the only counters of a run besides the ledger."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Clock:
    """Where a worker is.

    A *step* is one turn of the loop: one optimizer step (or an idle turn of a worker without examples). A *round* is
    one communication. *samples* are examples this worker consumed. `due` says whether a round belongs to the
    step being taken; `batch` is the number of examples in it. A sync sets `hold` in `before_step` when the optimizer
    must not move the model in this step (it accumulates gradients at a frozen model).
    """

    epoch: int = 0
    step: int = 0
    samples: int = 0
    rounds: int = 0
    seconds: float = 0.0
    busy: float = 0.0  # seconds of them in which gradients were computed; simulated ones where time is
    due: bool = False
    hold: bool = False
    batch: int = 0
    lr: float = 0.0

    def state_dict(self) -> dict[str, float]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, float]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
