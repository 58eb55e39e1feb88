"""One method, one file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

import equipoise as eq

PAPER = """@inproceedings{yin2018byzantine,
  author    = {Yin, Dong and Chen, Yudong and Kannan, Ramchandran and Bartlett, Peter},
  title     = {Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates},
  booktitle = {International Conference on Machine Learning},
  year      = {2018}
}"""


@dataclass
class Median(eq.sync.Sync):
    """Every worker trains alone for H steps, then all are pulled to the coordinate-wise median of their parameters.

        m = median over j of x_j,   x_i <- (1 - pull) x_i + pull m

    Fewer than half of the workers cannot move the median far, whatever they send. Every model goes to every worker:
    N - 1 messages per worker and round. Stores how far the last median was from the worker's own model. Any optimizer
    takes the local steps. With unequal shares of the examples the median counts all workers alike.
    Reference: Yin et al., Byzantine-Robust Distributed Learning, ICML 2018.
    """

    metadata: ClassVar[eq.Metadata] = eq.Metadata(
        name="median", help="pull to the coordinate-wise median of all workers' parameters", cites=(PAPER,)
    )

    STATE: ClassVar[tuple[str, ...]] = ("distance",)  # what a checkpoint keeps
    HEALTH: ClassVar[tuple[str, ...]] = ("distance",)  # what the events show

    pull: float = eq.option(1.0, help="how far to go towards the median", above=0, most=1)

    def init_state(self) -> None:
        self.distance = 0.0

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        """Gradients are left alone."""

    def after_step(self, x: torch.Tensor) -> None:
        models = self.context.comm.gather(x)  # a row per worker
        step = torch.quantile(models, 0.5, dim=0) - x
        self.distance = float(step.norm())
        x.add_(step, alpha=self.pull)
        self.context.clock.rounds += 1

    def cost(self, model: eq.sync.ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        messages = size - 1 if due else 0
        return messages, messages * model.elements * model.itemsize
