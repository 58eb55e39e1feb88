from __future__ import annotations

from typing import Any

import torch

from ..core.errors import UserError
from .noise import NoiseEstimate, across_examples
from .probe import NoiseProbe, mean_of, product


class ExamplesProbe(NoiseProbe):
    """Gradients g_i of single examples; v_m is that of the whole batch."""

    def init_state(self) -> None:
        self.kept: torch.Tensor | None = None
        self.measured = [0.0] * 4
        self.outputs = 0 if self.config.own else 1

    def after_backward(self, testing: bool) -> None: ...

    def measure(self) -> None:
        context = self.context
        if context.example_gradients is None:
            raise UserError("estimator='examples' needs eq.train, which knows the examples: use estimator='workers'")
        assert context.flat is not None
        self.kept = context.flat.copy_gradient(self.kept)
        self.measured = [0.0] * 4  # spread, examples, |v_m|^2, spread along v_m
        if context.clock.batch:
            rows = torch.stack(context.example_gradients(self.config.examples))
            along = rows @ self.kept if self.config.along else rows.new_zeros(1)
            rows -= rows.mean(0)
            spread = product(rows.view(-1), rows.view(-1))
            across = (along - along.mean()).double().square().sum().item()
            self.measured = [spread, float(len(rows)), product(self.kept, self.kept), across]

    def after_round(self) -> None: ...

    def numbers(self) -> list[float]:
        return self.measured

    def vector(self, averaged: str) -> torch.Tensor | None:
        return None if averaged == "gradient" or self.config.own else self.kept

    def map_chunk(
        self, rows: list[torch.Tensor], scales: list[float], metadata: list[list[float]], start: int
    ) -> list[float]:
        if self.config.own:
            return []
        mean = mean_of(rows, scales, [row[0] for row in metadata], self.buffers(rows[0])[0])
        return [product(mean, mean)]

    def estimate(self, batches: list[float], numbers: list[list[float]], totals: list[float]) -> NoiseEstimate | None:
        spreads, counts, norms, across = ([row[i] for row in numbers] for i in range(4))
        products = across if self.config.along else None
        mean_norm = 0.0 if self.config.own else totals[0]
        return across_examples(spreads, counts, norms, mean_norm, batches, own=self.config.own, products=products)

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None: ...
