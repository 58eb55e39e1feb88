"""Gradients on fresh examples, taken beside the training: nothing of it changes but the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

from ..comm.base import Comm
from ..core.random import seed_worker
from .evaluate import undisturbed


class FreshGradients:
    """Draws examples of the whole training data by a stream of its own, the same for all workers."""

    def __init__(
        self,
        model: nn.Module,
        loss_of: Callable[[np.ndarray], torch.Tensor],
        comm: Comm,
        *,
        total_examples: int,
        seed: int,
    ):
        self.model, self.loss_of, self.comm = model, loss_of, comm
        self.total_examples, self.seed = total_examples, seed

    def gradients(self, number: int, examples: int, parts: int = 1) -> Iterator[list[torch.Tensor]]:
        """The gradient of the mean loss over each of `parts` equal parts of draw `number`, a tensor a layer.

        All workers use the same examples, so that luck in the draw cancels when they compare. Taken in eval mode:
        dropout is off and BatchNorm is frozen, so parts are independent.
        """
        examples = max(1, examples // parts) * parts
        # With replacement: parts that avoid each other's examples would seem noisier than they are.
        drawn = np.random.default_rng([self.seed, 53, number]).integers(self.total_examples, size=examples)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        with undisturbed(self.model):
            seed_worker(self.seed + 53, number)  # for data sets that transform what they give
            for part in np.split(drawn, parts):
                gradients = torch.autograd.grad(self.loss_of(part), parameters, allow_unused=True)
                yield [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, parameters, strict=True)]
        self.comm.computed(examples)
