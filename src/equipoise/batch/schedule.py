from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.errors import UserError
from ..core.method import Metadata, option
from .base import Batch


@dataclass
class Schedule(Batch):
    """Sizes on a fixed schedule: `plan[0]` until `at[0]` has passed, then `plan[1]` until `at[1]`, and so on.

    `at` counts epochs (fractions too), samples of all workers, or steps. A change in the middle of an epoch neither
    loses nor repeats an example.
    Reference: Smith, Kindermans, Ying, Le, Don't Decay the Learning Rate, Increase the Batch Size, ICLR 2018.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="schedule", help="sizes on a fixed schedule, over epochs, samples or steps", cites=("smith2018dont",)
    )

    plan: list[int] = option([16, 32, 64], help="sizes per worker, one after the other", least=1)
    at: list[float] = option([1.0, 3.0], help="when the next size begins; one fewer than sizes", above=0)
    unit: str = option("epochs", help="what `at` counts", choices=("epochs", "samples", "steps"))

    def check(self) -> None:
        if len(self.at) != len(self.plan) - 1 or any(a >= b for a, b in zip(self.at, self.at[1:], strict=False)):
            raise UserError(
                f"plan = {self.plan} with at = {self.at}: give one point between each two sizes, in rising order"
            )

    def init_state(self) -> None: ...

    def sizes(self) -> list[int]:
        context = self.context
        done = context.clock.step if self.unit == "steps" else context.clock.consumed
        unit = context.worker.total_examples if self.unit == "epochs" else 1
        return [self.plan[sum(done >= point * unit for point in self.at)]] * context.size
