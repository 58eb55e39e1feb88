"""Where a loop of one's own compares hashes: it has no control points, so a gather every half second is made for it."""

from __future__ import annotations

import torch

from .drift import DriftCheck

_PATIENCE = 0.5  # seconds between two meetings,
_STEPS = 10  # or steps, where time is not that of a clock


class PacedDriftCheck:
    """Meets after the first step, and then at steps (without lockstep: rounds) on which all workers agree."""

    def __init__(self, check: DriftCheck):
        self.check, self.step = check, check.step
        self.next = 1

    def after_step(self) -> None:
        step, comm, clock = self.step, self.step.comm, self.step.clock
        self.check.after_step()
        done = clock.step if step.lockstep else clock.rounds
        if not step.talks or done < self.next or not (step.lockstep or clock.due):
            return
        with comm.uncounted():
            table = comm.gather(torch.tensor([clock.seconds, *self.check.row()], dtype=torch.float64)).numpy()
        self.check.judge(table[:, 1:])
        # By worker 0's watch, so that all choose the same step.
        seconds = float(table[0, 0]) / max(1, done)
        self.next = done + (_STEPS if comm.virtual else max(1, int(_PATIENCE / max(seconds, 1e-9))))
