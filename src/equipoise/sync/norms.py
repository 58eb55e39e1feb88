"""The size of a worker's gradient, layer by layer: where it is measured, how it is smoothed, what of it is noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..core.context import Context
from ..core.errors import UserError

SOURCES = ("train", "last", "fresh")
STEPS = {"train": 4, "last": 1, "fresh": 0}  # before a round, whose gradients are measured
_PARTS = 4  # of a fresh batch, from whose spread its noise is estimated
_LEAST = 0.1  # of the measured norm that is left when noise seems to explain all of it


class Norms:
    """Smoothed norms of one worker's gradients.

        N <- rho N + (1 - rho) n;   n^ = N / (1 - rho^k) after k measurements

    The division makes up for starting at zero: constant norms give n^ = n from the first measurement on.
    source: "train", the training gradients of the last few steps before a round, smoothed over steps; "last", that of
        the last one, smoothed over rounds; "fresh", of examples drawn for the purpose, smoothed over rounds, which
        takes one more pass. Norms of all other steps would cost time and be forgotten.
    debias: a gradient on b examples has E|g|^2 = |mean|^2 + var / b, and near the end the noise is nearly all of it. A
        fresh batch is measured in parts whose spread tells how much to take off.
    """

    def __init__(self, context: Context, source: str, smoothing: float, examples: int | None, debias: bool):
        if source == "fresh" and context.fresh_gradients is None:
            raise UserError("source='fresh' needs the data, which only eq.train has: use source='train' with eq.attach")
        assert context.flat is not None
        self.context, self.flat, self.source = context, context.flat, source
        self.smoothing, self.examples, self.debias = smoothing, examples, debias
        self.smoothed = torch.zeros(
            2, len(self.flat.slices), dtype=torch.float64
        )  # norms (debiased: squares) and noise
        self.count = 0  # measurements in it
        self.sound = False  # was the last one finite?
        self.last: torch.Tensor | None = None  # a gradient that waits for its round

    def step(self, left: int) -> None:
        """Measure the training gradient in the model, `left` steps before a round as far as one can tell.

        A gradient without examples says nothing.
        """
        if left >= STEPS[self.source] or not self.context.clock.batch:
            return
        measured = norms_of([p.grad for p in self.flat.parameters.values() if p.grad is not None])
        if len(measured) < len(self.flat.slices):  # a layer that this batch did not reach
            every = iter(measured)
            measured = torch.stack(
                [measured.new_zeros(()) if p.grad is None else next(every) for p in self.flat.parameters.values()]
            )
        if self.source == "train":
            self._add(measured)
        else:
            self.last = measured

    def at_round(self) -> torch.Tensor | None:
        """The norm of each layer's gradient; None for a worker that knows of none that is finite."""
        if self.source == "last" and self.last is not None:
            self._add(self.last)
            self.last = None
        elif self.source == "fresh":
            self._add(*self._measure())
        return self.level()

    def level(self) -> torch.Tensor | None:
        """What is known so far, as `at_round` gives it."""
        if not (self.sound and self.count):
            return None
        level, noise = self.smoothed / (1.0 - self.smoothing**self.count)
        return torch.maximum(level - noise, _LEAST**2 * level).sqrt() if self.debias else level

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("smoothed", "count", "sound", "last")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def _measure(self) -> tuple[torch.Tensor, ...]:
        """Norms of a fresh gradient, or their squares and what noise adds to them."""
        context = self.context
        assert context.fresh_gradients is not None
        examples = self.examples or int(context.clock.largest_batch)
        parts = list(context.fresh_gradients.gradients(context.clock.rounds, examples, _PARTS if self.debias else 1))
        if not self.debias:
            return (norms_of(parts[0]),)
        mean = torch._foreach_add(parts[0], parts[1])
        for part in parts[2:]:
            torch._foreach_add_(mean, part)
        level = norms_of(torch._foreach_div(mean, float(len(parts)))).square()
        spread = torch.stack([norms_of(part).square() for part in parts]).mean(0) - level
        return level, spread / (len(parts) - 1)

    def _add(self, *values: torch.Tensor) -> None:
        """Norms, and where it is known the noise in them."""
        self.sound = all(math.isfinite(float(one.sum())) for one in values)
        if self.sound:  # what is not finite would stay for ever
            for smoothed, one in zip(self.smoothed, values, strict=False):
                smoothed.mul_(self.smoothing).add_(one, alpha=1.0 - self.smoothing)
            self.count += 1


def norms_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The l2 norm of each, in float64."""
    if not tensors:
        return torch.zeros(0, dtype=torch.float64)
    norms = list(torch._foreach_norm(list(tensors)))
    if len({n.dtype for n in norms}) > 1:
        norms = [n.double() for n in norms]
    return torch.stack(norms).double().cpu()
