from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..comm.fused_reduction import chunks, sum_in_order
from ..core.errors import UserError
from .noise import NoiseEstimate
from .probe import NoiseProbe, estimate_across_workers, probe_numbers, product, statistics_count


class LocalSteps(NamedTuple):
    """The local steps of one worker since the last round."""

    rate: float  # A, the sum of their learning rates
    examples: float  # n_m, the effective number of examples in the pseudo-gradient


class PseudoGradientProbe(NoiseProbe):
    """v_m = (x - x_m) / A after local steps with learning rates a_h on b_h examples.

    A = sum a_h and n_m = A^2 / sum (a_h^2 / b_h). x are the parameters that all workers had after the last round.
    """

    def init_state(self) -> None:
        optimizer = self.context.optimizer
        groups = optimizer.param_groups if optimizer is not None else []
        plain = isinstance(optimizer, torch.optim.SGD) and not any(group["momentum"] for group in groups)
        attached = self.context.flat is not None  # a sampler without `eq.attach` never tests
        if attached and (not plain or len({group["lr"] for group in groups}) > 1):
            raise UserError(
                "estimator='pseudo' infers gradients from the parameters, which needs plain SGD with one learning "
                f"rate, and this is {type(optimizer).__name__} with other settings: use estimator='workers'"
            )
        if attached and self.context.clip is not None:
            raise UserError(
                "estimator='pseudo' infers gradients from the steps, which clip shortens: leave clip out, or use "
                "estimator='workers', which measures gradients before they are clipped"
            )
        self.outputs = statistics_count(self.context.size, self.config)
        self.anchor: torch.Tensor | None = None  # this worker's chunk of x
        self.rates = self.squares = 0.0  # A, and sum a_h^2 / b_h

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
        return list(LocalSteps(self.rates, self.rates**2 / self.squares if self.squares else 0.0))

    def vector(self, averaged: str) -> torch.Tensor | None:
        return None

    def map_chunk(
        self, rows: list[torch.Tensor], scales: list[float], metadata: list[list[float]], start: int
    ) -> list[float]:
        assert self.anchor is not None
        anchor, steps = self.anchor, [LocalSteps(*row) for row in probe_numbers(metadata)]
        rates, total = [s.rate for s in steps], sum_in_order([s.examples for s in steps])
        moved, mean = self.buffers(anchor, 2)

        def displacement(worker: int) -> torch.Tensor:
            """A times v_m, in `moved`. Only sums are divided by A, where numbers are no longer small."""
            return torch.sub(anchor, rows[worker], alpha=1.0 / scales[worker], out=moved)

        present = [m for m, (scale, rate) in enumerate(zip(scales, rates, strict=True)) if scale and rate]
        norms, products = [0.0] * len(rows), [0.0] * len(rows)
        mean.zero_()
        for m in present:
            norms[m] = product(displacement(m), moved) / rates[m] ** 2
            mean.add_(moved, alpha=steps[m].examples / total / rates[m])
        if not self.config.along:
            return [product(mean, mean), *norms]
        if self.config.own:
            moves = [displacement(m) / rates[m] if m in present else anchor.new_zeros(1) for m in range(len(rows))]
            moves = [move.expand_as(anchor) for move in moves]
            return [product(mean, mean), *norms, *(product(a, b) for a in moves for b in moves)]
        for m in present:
            products[m] = product(displacement(m), mean) / rates[m]
        return [product(mean, mean), *norms, *products]

    def estimate(self, batches: list[float], numbers: list[list[float]], totals: list[float]) -> NoiseEstimate | None:
        return estimate_across_workers(totals, [LocalSteps(*row).examples for row in numbers], batches, self.config)

    def state(self) -> dict[str, Any]:
        return {"anchor": self.anchor, "rates": self.rates, "squares": self.squares}

    def load(self, state: dict[str, Any]) -> None:
        self.anchor, self.rates, self.squares = state["anchor"], state["rates"], state["squares"]
