"""Where all workers together are: every worker reads the same numbers here, at the points where all may meet."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .job import Length
    from .worker import Worker


def multiples(epochs: float, every: float) -> int:
    """How many times `every` fits into `epochs`; a part of an epoch is rarely an exact float."""
    return math.floor(epochs / every + 1e-9)


class Progress(ABC):
    """Steps and epochs of the workers as a whole."""

    lockstep: bool

    def __init__(self, worker: Worker):
        self.worker = worker

    @property
    @abstractmethod
    def meeting(self) -> bool:
        """May all workers meet after the step that has just been taken?"""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps of the average worker."""

    @abstractmethod
    def ahead(self, step: int) -> float:
        """The steps that the average worker will have taken, as far as is known, when this one has taken `step`."""

    @abstractmethod
    def step_passed(self, every: int) -> bool:
        """Has a multiple of `every` steps been reached since the last meeting?"""

    @abstractmethod
    def epoch_passed(self, every: float) -> bool:
        """Has a multiple of `every` epochs been reached since the last meeting?"""

    @abstractmethod
    def reached(self, length: Length) -> bool:
        """Is the run as long as it should be? Its budget is not looked at."""

    @abstractmethod
    def met(self, steps: int, samples: int) -> None:
        """At a meeting: the steps that all workers together have taken, and the samples they have consumed."""


class Lockstep(Progress):
    """All workers take the same steps: each one's own clock says where all are, without asking."""

    lockstep = True
    meeting = True

    @property
    def steps(self) -> int:
        return self.worker.clock.step

    def ahead(self, step: int) -> float:
        return step

    def step_passed(self, every: int) -> bool:
        return self.worker.clock.step % every == 0

    def epoch_passed(self, every: float) -> bool:
        position, epoch = self.worker.position, self.worker.clock.epoch
        done = position.part_done
        before = done - position.drawn / position.size
        return multiples(epoch + (1.0 if position.steps_left == 0 else done), every) > multiples(epoch + before, every)

    def reached(self, length: Length) -> bool:
        clock, position = self.worker.clock, self.worker.position
        if length.steps is not None and clock.step >= length.steps:
            return True
        if length.epochs is not None:
            whole, part = divmod(length.epochs, 1.0)
            done = clock.epoch + (position.steps_left == 0)
            if done > whole or (done >= whole and part == 0):
                return True
            if clock.epoch == whole and position.part_done >= part - 1e-9:
                return True
        return length.samples is not None and position.consumed >= length.samples

    def met(self, steps: int, samples: int) -> None: ...


class Asynchronous(Progress):
    """Every worker takes its own number of steps; all meet at rounds. Lengths are totals over workers."""

    lockstep = False

    def __init__(self, worker: Worker):
        super().__init__(worker)
        self._steps = self._samples = 0  # of all workers at the last meeting,
        self._before = (0, 0.0)  # average steps and epochs at the one before,
        self._own = 0  # and this worker's steps at the last one

    @property
    def meeting(self) -> bool:
        return self.worker.clock.due

    @property
    def steps(self) -> int:
        return self._steps // self.worker.comm.size

    @property
    def epochs(self) -> float:
        return self._samples / len(self.worker.job.train)

    def ahead(self, step: int) -> float:
        return self._steps / self.worker.comm.size + (step - self._own)

    def step_passed(self, every: int) -> bool:
        return self.steps // every > self._before[0] // every

    def epoch_passed(self, every: float) -> bool:
        return multiples(self.epochs, every) > multiples(self._before[1], every)

    def reached(self, length: Length) -> bool:
        return (
            (length.steps is not None and self.steps >= length.steps)
            or (length.epochs is not None and self._samples >= length.epochs * len(self.worker.job.train))
            or (length.samples is not None and self._samples >= length.samples)
        )

    def met(self, steps: int, samples: int) -> None:
        self._before = self.steps, self.epochs
        self._steps, self._samples, self._own = steps, samples, self.worker.clock.step
        self.worker.clock.consumed = self._samples
