from __future__ import annotations

from typing import Any

import torch

from ..comm.look import pieces
from ..errors import UserError
from .evidence import Evidence
from .probe import Probe, judged, seen_of


class Pseudo(Probe):
    """v_m = (x - x_m) / A after local steps with rates a_h on b_h examples: A = sum a_h, n_m = A^2 / sum (a_h^2 / b_h)."""

    def begin(self) -> None:
        optimizer = self.context.optimizer
        groups = optimizer.param_groups if optimizer is not None else []
        plain = isinstance(optimizer, torch.optim.SGD) and not any(group["momentum"] for group in groups)
        if not plain or len({group["lr"] for group in groups}) > 1:
            raise UserError(
                "estimator='pseudo' reads gradients off the way that plain SGD with one learning rate goes, and this "
                f"{type(optimizer).__name__} goes another: use estimator='workers'"
            )
        self.findings = 1 + self.context.size * (2 if self.wish.along else 1)
        self.anchor: torch.Tensor | None = None  # this worker's piece of the x with which all began the round
        self.rates = self.squares = 0.0  # A and sum a_h^2 / b_h

    def stepped(self) -> None:
        clock, flat = self.context.clock, self.context.flat
        assert flat is not None
        if self.anchor is None:
            start, stop = pieces(len(flat), self.context.size)[self.context.rank]
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

    def passed(self) -> None:
        self.anchor, self.rates, self.squares = None, 0.0, 0.0

    def numbers(self) -> list[float]:
        return [self.rates, self.rates**2 / self.squares if self.squares else 0.0]

    def vector(self, averaged: str) -> torch.Tensor | None:
        return None

    def look(self, rows: list[torch.Tensor], scales: list[float], notes: list[list[float]], start: int) -> list[float]:
        assert self.anchor is not None
        rates, sizes = ([note[i] for note in notes] for i in (4, 5))
        # Worker m's way is A times v_m: divided at the end, where numbers are no longer small.
        ways = [torch.sub(self.anchor, r, alpha=1.0 / s if s else 0.0) for r, s in zip(rows, scales, strict=True)]
        return seen_of(ways, rates, sizes, self.wish.along)

    def evidence(self, batches: list[float], notes: list[list[float]], seen: list[float]) -> Evidence | None:
        return judged(seen, [note[1] for note in notes], batches, self.wish)

    def state(self) -> Any:
        return [self.anchor, self.rates, self.squares]

    def load(self, state: Any) -> None:
        self.anchor, self.rates, self.squares = state
