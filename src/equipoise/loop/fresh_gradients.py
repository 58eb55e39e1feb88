"""Gradients on fresh examples, taken beside the training: nothing of it changes but the time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..core.random import seed_worker
from .evaluate import undisturbed
from .gradient import loss_of

if TYPE_CHECKING:
    from .worker import Worker


class Probe:
    """Draws examples of the whole training data by a stream of its own, the same for all workers."""

    def __init__(self, worker: Worker):
        self.worker = worker

    def gradients(self, number: int, examples: int, parts: int = 1) -> Iterator[list[torch.Tensor]]:
        """The gradient of the mean loss over each of `parts` equal parts of draw `number`, a tensor a layer.

        All workers look at the same examples, so that luck in the draw cancels when they compare. Taken in eval mode:
        dropout is off and BatchNorm is frozen, so parts are independent.
        """
        worker, job = self.worker, self.worker.job
        examples = max(1, examples // parts) * parts
        # With replacement: parts that avoid each other's examples would seem noisier than they are.
        drawn = np.random.default_rng([job.seed, 53, number]).integers(len(job.train), size=examples)
        with undisturbed(worker):
            seed_worker(job.seed + 53, number)  # for data sets that transform what they give
            for part in np.split(drawn, parts):
                parameters = list(worker.flat.parameters.values())
                found = torch.autograd.grad(loss_of(worker, part), parameters, allow_unused=True)
                yield [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]
        worker.comm.computed(examples)
