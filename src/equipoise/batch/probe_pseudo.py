from __future__ import annotations

from typing import Any

import torch

from ..comm.fused_reduction import chunks, sum_in_order
from ..core.errors import UserError
from .noise import NoiseEstimate
from .probe import NoiseProbe, estimate_across_workers, product


class PseudoGradientProbe(NoiseProbe):
    """v_m = (x - x_m) / A after local steps with rates a_h on b_h examples: A = sum a_h, n_m = A^2 / sum (a_h^2 / b_h)."""

    def init_state(self) -> None:
        optimizer = self.context.optimizer
        groups = optimizer.param_groups if optimizer is not None else []
        plain = isinstance(optimizer, torch.optim.SGD) and not any(group["momentum"] for group in groups)
        attached = self.context.flat is not None  # a sampler that nothing is attached to never looks
        if attached and (not plain or len({group["lr"] for group in groups}) > 1):
            raise UserError(
                "estimator='pseudo' reads gradients off the way that plain SGD with one learning rate goes, and this "
                f"{type(optimizer).__name__} goes another: use estimator='workers'"
            )
        if attached and self.context.clip is not None:
            raise UserError(
                "estimator='pseudo' reads gradients off the steps, and clip shortens those: leave clip out, or use "
                "estimator='workers', which sees gradients before they are clipped"
            )
        self.outputs = 1 + self.context.size * (2 if self.config.along else 1)
        self.anchor: torch.Tensor | None = None  # this worker's piece of the x with which all began the round
        self.rates = self.squares = 0.0  # A and sum a_h^2 / b_h

    def after_backward(self, testing: bool) -> None:
        clock, flat = self.context.clock, self.context.flat
        assert flat is not None
        if self.anchor is None:
            start, stop = chunks(len(flat), self.context.size)[self.context.rank]
            self.anchor = flat.x[start:stop].clone()
        if clock.batch:
            self.rates += clock.lr
            self.squares += clock.lr**2 / clock.batch

    def measure(self) -> None:
        if self.context.averages != "parameters":
            raise UserError(
                "estimator='pseudo' needs a sync that averages all parameters at every round: use periodic-average, "
                "or estimator='workers'"
            )

    def after_round(self) -> None:
        self.anchor, self.rates, self.squares = None, 0.0, 0.0

    def numbers(self) -> list[float]:
        return [self.rates, self.rates**2 / self.squares if self.squares else 0.0]

    def vector(self, averaged: str) -> torch.Tensor | None:
        return None

    def map_chunk(
        self, rows: list[torch.Tensor], scales: list[float], metadata: list[list[float]], start: int
    ) -> list[float]:
        assert self.anchor is not None
        rates, sizes = ([row[i] for row in metadata] for i in (4, 5))
        way, mean = self.buffers(self.anchor, 2)

        def walked(worker: int) -> torch.Tensor:
            """A times v_m: divided by A at the end only, where numbers are no longer small."""
            assert self.anchor is not None
            return torch.sub(self.anchor, rows[worker], alpha=1.0 / scales[worker], out=way)

        moved = [m for m, (scale, rate) in enumerate(zip(scales, rates, strict=True)) if scale and rate]
        norms, products = [0.0] * len(rows), [0.0] * len(rows)
        mean.zero_()
        for m in moved:
            norms[m] = product(walked(m), way) / rates[m] ** 2
            mean.add_(way, alpha=sizes[m] / sum_in_order(sizes) / rates[m])
        if not self.config.along:
            return [product(mean, mean), *norms]
        for m in moved:
            products[m] = product(walked(m), mean) / rates[m]
        return [product(mean, mean), *norms, *products]

    def estimate(self, batches: list[float], numbers: list[list[float]], totals: list[float]) -> NoiseEstimate | None:
        return estimate_across_workers(totals, [row[1] for row in numbers], batches, self.config)

    def state(self) -> dict[str, Any]:
        return {"anchor": self.anchor, "rates": self.rates, "squares": self.squares}

    def load(self, state: dict[str, Any]) -> None:
        self.anchor, self.rates, self.squares = state["anchor"], state["rates"], state["squares"]
