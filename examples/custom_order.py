"""A method of your own: an order that shuffles blocks of neighbouring examples.

    python examples/custom_order.py

A method is a dataclass. Its fields are options, its docstring is its documentation, and `init_state` makes the state of
one worker. An object is used directly; a registered name is needed only for the command line.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import equipoise as eq
from equipoise.core.method import option
from equipoise.order import Order


@dataclass
class Blocks(Order):
    """Shuffle blocks of `size` neighbouring examples and keep the order inside each block."""

    size: int = option(16, help="examples per block", least=1)

    def init_state(self) -> None: ...

    def epoch(self, number: int) -> np.ndarray:
        worker = self.context.worker
        blocks = np.array_split(np.arange(worker.examples), max(1, worker.examples // self.size))
        return np.concatenate([blocks[i] for i in worker.rng(1, number).permutation(len(blocks))])

    def observe(self, positions: np.ndarray, view: eq.signal.GradientView | None) -> None: ...


if __name__ == "__main__":
    x = torch.randn(256, 5)
    run = eq.train(nn.Linear(5, 1), nn.MSELoss(), (x, x.sum(1, keepdim=True)), workers=2, epochs=4, order=Blocks(8))
    print(f"loss of the mean model {run.result['models']['mean']['loss']:.4f}")
