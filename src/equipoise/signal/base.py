"""What orders and batch rules see of each example's gradient."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from ..core.method import Method

SAMPLE = 1024  # coordinates of the gradient that herding is measured on


class GradientView(ABC):
    """The vectors `g_0 ... g_(items-1)` of one batch, known by what can be asked of them.

    Nobody ever needs the vectors themselves: products with a given vector, products with each other and weighted sums
    are enough for every order, and a view may answer these without making the vectors.
    """

    items: int
    sizes: list[int]  # examples behind each vector, in the order of the batch
    dimension: int
    sample: torch.Tensor | None = None  # the sum of all vectors over the examples, in a few fixed coordinates
    stale: ClassVar[bool] = False  # is `gram` too dear to be asked? Then all signs go by `products` alone

    @abstractmethod
    def products(self, vector: torch.Tensor) -> torch.Tensor:
        """`<vector, g_i>` for all i, less what `regions` cover."""

    @abstractmethod
    def gram(self) -> torch.Tensor:
        """`<g_i, g_j>` for all i and j, less what `regions` cover."""

    @abstractmethod
    def add_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        """`vector += sum_i weights_i g_i`, less what `regions` cover."""

    @abstractmethod
    def regions(self) -> list[slice]:
        """Coordinates in which products of vectors with each other cost too much: there one vector is made at a
        time.
        """

    @abstractmethod
    def add_regions_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        """`vector += sum_i weights_i g_i` inside the regions; items of weight zero cost nothing."""

    @abstractmethod
    def zeros(self) -> torch.Tensor:
        """A vector of zeros of this kind, in single precision at least."""

    @abstractmethod
    def take(self, items: list[int]) -> GradientView:
        """A view of some of the vectors that outlives this one."""

    @abstractmethod
    def join(self, later: GradientView) -> GradientView:
        """These vectors, then those of a later batch."""

    @abstractmethod
    def state(self) -> Any:
        """Everything in it as tensors and plain values; `equipoise.signal.restored` makes a view of it again."""

    @abstractmethod
    def vectors(self, weights: torch.Tensor) -> torch.Tensor:
        """`sum_i weights_ki g_i` for every row k of the weights, made: for short vectors."""

    def vector(self, weights: torch.Tensor) -> torch.Tensor:
        """`sum_i weights_i g_i`, made."""
        made = self.zeros()
        self.add_to(made, weights)
        self.add_regions_to(made, weights)
        return made


@dataclass
class Signal(Method):
    """Watches a model during forward and backward, then gives a view of what every example contributed."""

    most: ClassVar[int] = 0  # examples per pass, where only whole passes are seen; 0: any number

    @abstractmethod
    def watching(self, model: nn.Module, examples: int) -> contextlib.AbstractContextManager[None]:
        """Around one forward and backward pass over so many examples. A batch may take several of them."""

    @abstractmethod
    def forget(self) -> None:
        """Drop the passes since the last view."""

    @abstractmethod
    def view(self) -> GradientView:
        """The examples of all passes since the last view, in order."""


def sample_of(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """Evenly spaced coordinates of the gradient: enough for its norm, nothing beside a step."""
    parameters = list(parameters)
    stride = max(1, sum(p.numel() for p in parameters) // SAMPLE)
    found = []
    for p in parameters:
        empty = torch.zeros(-(-p.numel() // stride), dtype=p.dtype, device=p.device)
        found.append(empty if p.grad is None else p.grad.detach().reshape(-1)[::stride])
    return torch.cat(found).to(torch.float64 if parameters[0].dtype == torch.float64 else torch.float32)
