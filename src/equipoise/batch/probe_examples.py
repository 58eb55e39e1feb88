from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..core.device import on_host
from ..core.errors import UserError
from .noise import NoiseEstimate, across_examples
from .probe import NoiseProbe, mean_of, product, worker_reports


class ExampleStatistics(NamedTuple):
    """What one worker measured on single examples of its batch."""

    spread: float = 0.0  # sum of |g_i - their mean|^2
    examples: float = 0.0
    norm: float = 0.0  # |v_m|^2, or |v|^2 where v is at hand
    along: float = 0.0  # sum of squares of <g_i, v> around their mean, v the gradient under test


class ExamplesProbe(NoiseProbe):
    """Gradients g_i of single examples; v_m is that of the entire batch.

    The variance along the mean gradient v needs v on every worker: one more all-reduce, instead of the vector that is
    sent one way.
    """

    def init_state(self) -> None:
        self.gradient: torch.Tensor | None = None  # v_m
        self.measured = ExampleStatistics()
        self.gathers = self.config.along and not self.config.own
        self.outputs = 0 if self.config.own or self.gathers else 1

    def after_backward(self, testing: bool) -> None: ...

    def measure(self) -> None:
        context = self.context
        if context.example_gradients is None:
            raise UserError("estimator='examples' needs eq.train, which knows the examples: use estimator='workers'")
        assert context.flat is not None
        gradient = self.gradient = context.flat.copy_gradient(self.gradient)
        tested = self._mean_gradient(gradient) if self.gathers else gradient
        norm = product(tested, tested)
        self.measured = ExampleStatistics(norm=norm if self.gathers else 0.0)
        if context.clock.batch:
            rows = torch.stack(context.example_gradients(self.config.examples))
            rows -= rows.mean(0)
            spread = product(rows.view(-1), rows.view(-1))
            products = rows.to(tested.dtype) @ tested if self.config.along else tested.new_zeros(1)
            along = on_host(products).square().sum().item()
            self.measured = ExampleStatistics(spread, float(len(rows)), norm, along)

    def _mean_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """v: the mean over all workers, each weighted by its batch."""
        batch = float(self.context.clock.batch)
        message = torch.zeros(
            len(gradient) + 1, dtype=torch.promote_types(gradient.dtype, torch.float32), device=gradient.device
        )
        if batch:
            message[:-1].copy_(gradient).mul_(batch)
            message[-1] = batch
        self.context.comm.weighted_mean(message)
        return message[:-1]

    def after_round(self) -> None: ...

    def numbers(self) -> list[float]:
        return list(self.measured)

    def vector(self, averaged: str) -> torch.Tensor | None:
        return None if averaged == "gradient" or self.config.own or self.gathers else self.gradient

    def map_chunk(
        self, rows: list[torch.Tensor], scales: list[float], metadata: list[list[float]], start: int
    ) -> list[float]:
        if not self.outputs:
            return []
        batches = [report.batch for report in worker_reports(metadata)]
        mean = mean_of(rows, scales, batches, self.buffers(rows[0])[0])
        return [product(mean, mean)]

    def estimate(self, batches: list[float], numbers: list[list[float]], totals: list[float]) -> NoiseEstimate | None:
        measured = [ExampleStatistics(*row) for row in numbers]
        mean_norm = measured[0].norm if self.gathers else 0.0 if self.config.own else totals[0]
        return across_examples(
            [m.spread for m in measured],
            [m.examples for m in measured],
            [m.norm for m in measured],
            mean_norm,
            batches,
            own=self.config.own,
            products=[m.along for m in measured] if self.config.along else None,
        )

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None: ...
