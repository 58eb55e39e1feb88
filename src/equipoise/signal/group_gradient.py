from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from ..core.method import option
from .base import Signal
from .rows import Rows


@dataclass
class GroupGradient(Signal):
    """The gradient of each pass, as backward left it: one vector for all examples of a group.

    Any model, BatchNorm included, at the price of a copy of the gradient. The loop takes one pass per group; where a
    batch is one group, that is the pass it takes anyway.
    """

    size: int = option(1, help="examples in a group", least=1)

    def init_state(self) -> None:
        self.rows: list[torch.Tensor] = []
        self.sizes: list[int] = []

    @property
    def examples_per_pass(self) -> int | None:
        return self.size

    @contextlib.contextmanager
    def watching(self, model: nn.Module, examples: int) -> Iterator[None]:
        parameters = [p for p in model.parameters() if p.requires_grad]
        before = _flat(parameters)
        yield
        self.rows.append(_flat(parameters).sub_(before))
        self.sizes.append(examples)

    def forget(self) -> None:
        self.rows, self.sizes = [], []

    def view(self) -> Rows:
        # Each pass was weighted by its share of the batch: undone here.
        total = sum(self.sizes)
        for row, size in zip(self.rows, self.sizes, strict=True):
            row.mul_(total / size)
        view = Rows(torch.stack(self.rows), self.sizes)
        self.rows, self.sizes = [], []
        return view


def _flat(parameters: list[nn.Parameter]) -> torch.Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1) for p in parameters])
