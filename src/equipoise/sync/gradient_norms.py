"""Norms of a worker's gradient, layer by layer: where they are measured, how they are smoothed, what part is noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..core.context import Context
from ..core.device import on_host, widest
from ..core.errors import UserError

SOURCES = ("train", "last", "fresh")
STEPS = {"train": 4, "last": 1, "fresh": 0}  # so many training steps before a round are measured
_PARTS = 4  # of a fresh batch: their spread estimates its noise
_LEAST = 0.1  # part of the measured norm that remains when noise seems to explain all of it


class GradientNorms:
    """Smoothed norms of one worker's gradients.

        N <- rho N + (1 - rho) n;   n^ = N / (1 - rho^k) after k measurements

    The division corrects the bias of starting at zero: constant norms give n^ = n from the first measurement on.
    source: "train" measures the training gradients of the last few steps before a round and smooths over steps; "last"
        measures the last one and smooths over rounds; "fresh" measures the gradient on examples drawn for the purpose,
        at the cost of one more pass, and smooths over rounds. Norms of all other steps would cost time and be
        forgotten.
    debias: a gradient on b examples has E|g|^2 = |mean|^2 + var / b, and near convergence the noise dominates. A fresh
        batch is measured in parts; their spread says how much to subtract.
    """

    def __init__(self, context: Context, source: str, smoothing: float, examples: int | None, debias: bool):
        if source == "fresh" and context.fresh_gradients is None:
            raise UserError("source='fresh' needs the data, which only eq.train has: use source='train' with eq.attach")
        assert context.flat is not None
        self.context, self.flat, self.source = context, context.flat, source
        self.smoothing, self.examples, self.debias = smoothing, examples, debias
        self.forget()

    def forget(self) -> None:
        """Begin without a measurement."""
        # Two rows: norms (squared norms with `debias`) and noise.
        self.smoothed = torch.zeros(2, len(self.flat.slices), dtype=torch.float64)
        self.count = 0  # measurements in `smoothed`
        self.finite = False  # was the last measurement finite?
        self.pending: torch.Tensor | None = None  # a measurement that waits for its round
        self.unread: list[torch.Tensor] = []  # measurements of steps, still on the device of the model
        self.measured: list[torch.Tensor] = []  # since the last round, after the last one before it

    def observe_step(self, steps_left: int) -> None:
        """Measure the training gradient in the model, `steps_left` steps before the expected round.

        Where a round may come after any step, every step is measured. A worker without examples measures nothing.
        """
        context = self.context
        near = steps_left < STEPS[self.source] or context.clock.due
        foreseen = context.lockstep or not STEPS[self.source]
        if not context.clock.batch or (foreseen and not near):
            return
        gradients = self.flat.gradients()
        norms = layer_norms([gradient for gradient in gradients if gradient is not None])
        if len(norms) < len(self.flat.slices):  # a layer that this batch did not reach
            reached = iter(norms)
            norms = torch.stack([norms.new_zeros(()) if each is None else next(reached) for each in gradients])
        if self.source == "train":
            self.unread.append(norms)
        else:
            self.pending = norms

    def at_round(self) -> torch.Tensor | None:
        """The norm of each layer's gradient; None for a worker without a finite measurement."""
        if self.source == "last" and self.pending is not None:
            self._add(self.context.island.norms(self.pending))
            self.pending = None
        elif self.source == "fresh":
            self._add(*self._measure())
        return self.estimate()

    def estimate(self) -> torch.Tensor | None:
        """As `at_round`, without a new measurement."""
        self._read()
        if not (self.finite and self.count):
            return None
        level, noise = self.smoothed / (1.0 - self.smoothing**self.count)
        return torch.maximum(level - noise, _LEAST**2 * level).sqrt() if self.debias else level

    def take_measured(self) -> list[torch.Tensor]:
        """The norms measured since the last round, after the last ones before it; the next round begins."""
        measured, self.measured = self.measured, self.measured[-1:]
        return measured

    def state_dict(self) -> dict[str, Any]:
        self._read()
        pending = None if self.pending is None else on_host(self.pending)
        return {
            "smoothed": self.smoothed,
            "count": self.count,
            "finite": self.finite,
            "pending": pending,
            "measured": list(self.measured),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.unread = []
        for name, value in state.items():
            setattr(self, name, value)

    def _measure(self) -> tuple[torch.Tensor, ...]:
        """Norms of a fresh gradient; with `debias` their squares and the noise in these."""
        context = self.context
        assert context.fresh_gradients is not None
        examples = self.examples or int(context.clock.largest_batch)
        parts = list(context.fresh_gradients.gradients(context.clock.rounds, examples, _PARTS if self.debias else 1))
        if not self.debias:
            return (norms_of(parts[0]),)
        mean = torch._foreach_add(parts[0], parts[1])
        for part in parts[2:]:
            torch._foreach_add_(mean, part)
        squares = norms_of(torch._foreach_div(mean, float(len(parts)))).square()
        spread = torch.stack([norms_of(part).square() for part in parts]).mean(0) - squares
        return squares, spread / (len(parts) - 1)

    def _read(self) -> None:
        """Take in what the steps since the last round have measured; a device is waited for once."""
        unread, self.unread = self.unread, []
        for norms in self.context.island.norms(torch.stack(unread)) if unread else ():
            self._add(norms)

    def _add(self, *values: torch.Tensor) -> None:
        """Add one measurement: norms and, with `debias`, their noise."""
        self.finite = all(math.isfinite(float(row.sum())) for row in values)
        if self.finite:  # a value that is not finite would never be forgotten
            for smoothed, row in zip(self.smoothed, values, strict=False):
                smoothed.mul_(self.smoothing).add_(row, alpha=1.0 - self.smoothing)
            self.count += 1
            self.measured.append(values[0])


def norms_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The l2 norm of each tensor, in float64, on the host."""
    return on_host(layer_norms(tensors))


def layer_norms(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The l2 norm of each tensor, on their device."""
    if not tensors:
        return torch.zeros(0)
    norms = list(torch._foreach_norm(list(tensors)))
    if len({n.dtype for n in norms}) > 1:
        norms = [n.to(widest(n.device)) for n in norms]
    return torch.stack(norms)
