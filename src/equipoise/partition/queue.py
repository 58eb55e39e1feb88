from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.method import Metadata
from ..data.view import DatasetView
from .base import Partition


@dataclass
class Queue(Partition):
    """No worker owns examples. An epoch is one list, and a worker that is free claims the next batch of it.

        the lists of all epochs, one after the other:  x_0, x_1, x_2, ...      epoch e: x_{en} to x_{(e+1)n - 1}
        agreed: x_0 to x_{c-1}, each trained on once;  claimed, and not agreed yet: x_c to x_{d-1}

    A work unit is one batch of the worker that claims it. At a round every claim is complete, so what is agreed is
    always a beginning of the list and one number, c, says where all workers are. A worker that is lost before a round
    takes no example along: all go back to c, and x_c, x_{c+1}, ... are handed out again. So every epoch has each
    example exactly once, whoever leaves or joins, and a run resumes on any number of workers in the same list.

    The order acts on the list: it permutes all examples, the same way on all workers. Orders that learn from gradients
    need a block of their own and are refused.

    With a period in lockstep (`every`) all workers take the same steps. Claims are then made in rank order without a
    message, of b_i examples each; the last examples of an epoch are shared in proportion to b_i. Runs on processes and
    on virtual workers have the same bits. With `total-steps` a claim is one addition to a shared counter. Fast workers
    claim more, nobody measures speeds, and nobody waits at the end of an epoch: a batch may reach into the next list.
    """

    metadata: ClassVar[Metadata] = Metadata(
        name="queue", help="one list: whoever is free claims its next batch, and every example is trained on once"
    )

    claimed: ClassVar[bool] = True

    def split(self, view: DatasetView, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Equal slices, which stand for the workers where an example of each is asked for."""
        return np.array_split(np.arange(view.examples), workers)
