from __future__ import annotations

from typing import Any

import torch

from ..core.errors import UserError
from .noise import Evidence, across_examples
from .probe import Probe, mean_of, product


class Examples(Probe):
    """Gradients g_i of single examples; v_m is that of the whole batch."""

    def begin(self) -> None:
        self.kept: torch.Tensor | None = None
        self.found = [0.0] * 4
        self.findings = 0 if self.wish.own else 1

    def stepped(self, testing: bool) -> None: ...

    def measure(self) -> None:
        context = self.context
        if context.example_gradients is None:
            raise UserError("estimator='examples' needs eq.train, which knows the examples: use estimator='workers'")
        assert context.flat is not None
        self.kept = context.flat.copy_gradient(self.kept)
        self.found = [0.0] * 4  # spread, examples, |v_m|^2, spread along v_m
        if context.clock.batch:
            rows = torch.stack(context.example_gradients(self.wish.examples))
            along = rows @ self.kept if self.wish.along else rows.new_zeros(1)
            rows -= rows.mean(0)
            spread = product(rows.view(-1), rows.view(-1))
            across = (along - along.mean()).double().square().sum().item()
            self.found = [spread, float(len(rows)), product(self.kept, self.kept), across]

    def passed(self) -> None: ...

    def numbers(self) -> list[float]:
        return self.found

    def vector(self, averaged: str) -> torch.Tensor | None:
        return None if averaged == "gradient" or self.wish.own else self.kept

    def look(self, rows: list[torch.Tensor], scales: list[float], notes: list[list[float]], start: int) -> list[float]:
        if self.wish.own:
            return []
        mean = mean_of(rows, scales, [note[0] for note in notes], self.rooms(rows[0])[0])
        return [product(mean, mean)]

    def evidence(self, batches: list[float], notes: list[list[float]], seen: list[float]) -> Evidence | None:
        spreads, counts, norms, across = ([note[i] for note in notes] for i in range(4))
        products = across if self.wish.along else None
        mean_norm = 0.0 if self.wish.own else seen[0]
        return across_examples(spreads, counts, norms, mean_norm, batches, own=self.wish.own, products=products)

    def state(self) -> None: ...

    def load(self, state: Any) -> None: ...
