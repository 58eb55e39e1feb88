from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.clock import Clock
from ..core.method import Metadata, option
from .base import Period


@dataclass
class TotalSteps(Period):
    """A round when all N workers together have taken N H steps since the last one: fast workers take more.

        after a step:  c <- c + 1, the shared counter;   a round is due if c > N (H - 1)

    A worker adds 1 to the counter when it has finished a step, which claims the next one; the first step after a round
    needs no claim. So exactly N H steps are taken between two rounds, H by each worker where all are equally fast, and
    no worker waits longer than one step for a straggler. Workers count their own epochs; the run is evaluated, saved
    and ended at rounds only, where lengths are totals: `steps` times N, `epochs` and `samples` of all workers.
    On virtual workers simulated time decides who comes first, so a run can be repeated and resumed to the bit. On
    processes real time does: the counter is in the store of the process group, with one request per step, and two runs
    have the same totals but not the same bits.
    Reference: Teng et al., Leader Stochastic Gradient Descent, NeurIPS 2019; Dimlioglu and Choromanska, GRAWA,
    AISTATS 2024.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="total-steps",
        help="a round when all workers together have taken N H steps",
        cites=("teng2019leader", "dimlioglu2024grawa"),
    )

    lockstep: ClassVar[bool] = False
    exact: ClassVar[bool] = False  # real time decides which worker takes how many steps

    steps: int = option(8, help="optimizer steps between rounds, per worker on average (H)", least=1)

    def init_state(self) -> None:
        comm = self.context.comm
        self.completed = 0  # rounds since this process started; checkpoints are taken at rounds, so none needs it
        self.base = comm.counter("total-steps", 0)
        comm.gather_objects(None)  # no worker counts before all have read the base

    def due(self, clock: Clock) -> bool:
        size = self.context.size
        counted = self.context.comm.counter("total-steps", 1) - self.base - self.completed * size * self.steps
        if counted <= size * (self.steps - 1):
            return False
        self.completed += 1
        return True
