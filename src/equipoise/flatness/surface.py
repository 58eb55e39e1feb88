"""The loss of a model as a function of its parameters, on fixed data: value, gradient and curvature."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ..core.errors import UserError
from ..data.source import Source
from ..data.training_loss import TrainingLoss, moved


class Estimate(NamedTuple):
    """A value and its error."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.5g} ± {self.error:.2g}"


class Surface:
    """f(x) = mean loss over fixed examples, as a function of the trainable parameters x.

    Computed in eval mode (BatchNorm's statistics fixed, no dropout), `chunk` examples at a time. The model is left
    unchanged: parameters, gradients, buffers and mode. `loss(model(inputs), targets)` must be a mean over the batch.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], torch.Tensor] | None,
        data: Any,
        *,
        examples: int | None = None,
        seed: int = 0,
        chunk: int = 256,
    ):
        source = data if isinstance(data, Source) else Source(data)
        self.model, self.training_loss, self.source = model, TrainingLoss(loss), source
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise UserError("the model has no trainable parameter: set requires_grad=True on what should be measured")
        count = len(source) if examples is None else min(examples, len(source))
        self.indices = np.sort(np.random.default_rng(seed).permutation(len(source))[:count])
        self.chunk = chunk
        self.size = sum(p.numel() for p in self.parameters)

    def loss(self) -> float:
        """f(x)."""
        with self._evaluating(), torch.no_grad():
            return math.fsum(float(loss) * weight for loss, weight in self._losses(self.indices))

    def gradient(self, indices: np.ndarray | None = None) -> torch.Tensor:
        """The gradient as one vector, in double precision."""
        total = torch.zeros(self.size, dtype=torch.float64)
        with self._evaluating():
            for loss, weight in self._losses(self.indices if indices is None else indices):
                total += weight * self._flat(torch.autograd.grad(loss, self.parameters, allow_unused=True))
        return total

    def times_hessian(self, vector: torch.Tensor) -> torch.Tensor:
        """H v, by differentiating g . v; summed in double precision, computed in the dtype of the model."""
        pieces = self.like(vector)
        total = torch.zeros(self.size, dtype=torch.float64)
        with self._evaluating():
            for loss, weight in self._losses(self.indices):
                first = torch.autograd.grad(loss, self.parameters, create_graph=True, allow_unused=True)
                used = [(g, v) for g, v in zip(first, pieces, strict=True) if g is not None and g.requires_grad]
                if not used:
                    continue  # a loss that is linear in the parameters has no curvature
                slope = torch.stack([(g * v).sum() for g, v in used]).sum()
                total += weight * self._flat(torch.autograd.grad(slope, self.parameters, allow_unused=True))
        return total

    def like(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """A vector cut into tensors with shape, dtype and device of the parameters."""
        pieces = torch.split(vector, [p.numel() for p in self.parameters])
        return [v.view(p.shape).to(p) for v, p in zip(pieces, self.parameters, strict=True)]

    @contextlib.contextmanager
    def moved(self, by: list[torch.Tensor], distance: float) -> Iterator[None]:
        """The model at x + distance * by."""
        saved = [p.detach().clone() for p in self.parameters]
        try:
            with torch.no_grad():
                for p, d in zip(self.parameters, by, strict=True):
                    p.add_(d, alpha=distance)
            yield
        finally:
            with torch.no_grad():
                for p, old in zip(self.parameters, saved, strict=True):
                    p.copy_(old)

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        modes = {m: m.training for m in self.model.modules()}
        self.model.eval()
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training

    def _losses(self, indices: np.ndarray) -> Iterator[tuple[torch.Tensor, float]]:
        device = self.parameters[0].device
        for start in range(0, len(indices), self.chunk):
            part = indices[start : start + self.chunk]
            batch = moved(self.source.batch(part), device)
            yield self.training_loss(self.model, batch), len(part) / len(indices)

    def _flat(self, tensors: tuple[torch.Tensor | None, ...]) -> torch.Tensor:
        pairs = zip(tensors, self.parameters, strict=True)
        return torch.cat(
            [(torch.zeros_like(p) if t is None else t.detach()).reshape(-1).double().cpu() for t, p in pairs]
        )


def gradient_norm(surface: Surface, parts: int = 8) -> Estimate:
    """|gradient f(x)|, with the error from the choice of examples: the jackknife over `parts` parts of the data."""
    pieces = [p for p in np.array_split(np.random.default_rng(0).permutation(surface.indices), parts) if len(p)]
    shares = torch.tensor([len(p) for p in pieces], dtype=torch.float64)
    gradients = torch.stack([surface.gradient(piece) for piece in pieces])
    total = shares @ gradients
    value = float(total.norm() / shares.sum())
    if len(pieces) < 2:
        return Estimate(value, math.inf)
    without = torch.stack([(total - n * g).norm() / (shares.sum() - n) for n, g in zip(shares, gradients, strict=True)])
    spread = (without - without.mean()).square().sum() * (len(pieces) - 1) / len(pieces)
    return Estimate(value, float(spread.sqrt()))
