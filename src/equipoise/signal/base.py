"""The per-example gradients of a batch, for orders that learn from them."""

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
    """The gradients `g_0 ... g_(items-1)` of one batch, through the operations that orders need.

    Products with a given vector, products with each other and weighted sums are enough for every order. A view may
    compute these without materializing a gradient.
    """

    items: int
    sizes: list[int]  # examples behind each vector, in the order of the batch
    dimension: int
    sample: torch.Tensor | None = None  # the sum of all vectors over the examples, at a few fixed coordinates
    stale: ClassVar[bool] = False  # is `gram` too expensive? Then all signs of a batch use the S before it

    @abstractmethod
    def products(self, vector: torch.Tensor) -> torch.Tensor:
        """`<vector, g_i>` for all i, without the coordinates in `regions`."""

    @abstractmethod
    def gram(self) -> torch.Tensor:
        """`<g_i, g_j>` for all i and j, without the coordinates in `regions`."""

    @abstractmethod
    def add_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        """`vector += sum_i weights_i g_i`, without the coordinates in `regions`."""

    @abstractmethod
    def regions(self) -> list[slice]:
        """Coordinates in which `gram` would cost too much: there, vectors are materialized one at a time."""

    @abstractmethod
    def add_regions_to(self, vector: torch.Tensor, weights: torch.Tensor) -> None:
        """`vector += sum_i weights_i g_i` inside the regions; items of weight zero cost nothing."""

    @abstractmethod
    def zeros(self) -> torch.Tensor:
        """A zero vector of this dimension, dtype (single precision at least) and device."""

    @abstractmethod
    def take(self, items: list[int]) -> GradientView:
        """A view of some of the vectors that outlives this one."""

    @abstractmethod
    def join(self, later: GradientView) -> GradientView:
        """These vectors, then those of a later batch."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Its content as tensors and plain values; `equipoise.signal.view_from_state` makes a view of it again."""

    @abstractmethod
    def vectors(self, weights: torch.Tensor) -> torch.Tensor:
        """`sum_i weights_ki g_i` for every row k of the weights, materialized: for short vectors."""

    def vector(self, weights: torch.Tensor) -> torch.Tensor:
        """`sum_i weights_i g_i`, materialized."""
        vector = self.zeros()
        self.add_to(vector, weights)
        self.add_regions_to(vector, weights)
        return vector


@dataclass
class Signal(Method):
    """Watches a model during forward and backward, then gives a view of every example's gradient."""

    @property
    def examples_per_pass(self) -> int | None:
        """Most examples in one pass, where a pass gives a single gradient; None: any number."""
        return None

    @abstractmethod
    def watching(self, model: nn.Module, examples: int) -> contextlib.AbstractContextManager[None]:
        """Around one forward and backward pass over so many examples. A batch may take several passes."""

    @abstractmethod
    def forget(self) -> None:
        """Drop the passes since the last view."""

    @abstractmethod
    def view(self) -> GradientView:
        """The examples of all passes since the last view, in order."""


def sample_of(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """Evenly spaced coordinates of the gradient: enough to estimate its norm, at no cost beside a step."""
    parameters = list(parameters)
    stride = max(1, sum(p.numel() for p in parameters) // SAMPLE)
    samples = []
    for p in parameters:
        zeros = torch.zeros(-(-p.numel() // stride), dtype=p.dtype, device=p.device)
        samples.append(zeros if p.grad is None else p.grad.detach().reshape(-1)[::stride])
    return torch.cat(samples).to(torch.float64 if parameters[0].dtype == torch.float64 else torch.float32)
