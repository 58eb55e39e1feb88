from __future__ import annotations

from typing import Any

import torch

from .noise import Evidence
from .probe import Probe, judged, seen_of


class Workers(Probe):
    """The gradients of the workers' batches: v_m is that of worker m's last local step.

    By then workers are apart, and V holds their disagreement too. At the first step they are still at one point: its
    gradient is kept until the round that tells of it, with the number of examples in it.
    """

    def begin(self) -> None:
        self.kept: torch.Tensor | None = None
        self.examples = 0.0  # in the gradient that is kept
        self.began = False  # is it one of the round under way?
        self.findings = 1 + self.context.size * (2 if self.wish.along else 1)

    def stepped(self, testing: bool) -> None:
        if self.wish.first and testing and not self.began:
            self.keep()

    def measure(self) -> None:
        if not self.wish.first:
            self.keep()

    def keep(self) -> None:
        flat = self.context.flat
        assert flat is not None
        # Clipping and optimizers may change gradients in place; a sync that averages them has them before that.
        self.kept = None if self.context.averages == "gradient" else flat.copy_gradient(self.kept)
        self.began, self.examples = True, float(self.context.clock.batch)

    def passed(self) -> None:
        self.began = False

    def numbers(self) -> list[float]:
        return [self.examples]

    def vector(self, averaged: str) -> torch.Tensor | None:
        return None if averaged == "gradient" else self.kept

    def look(self, rows: list[torch.Tensor], scales: list[float], notes: list[list[float]], start: int) -> list[float]:
        return seen_of(rows, scales, [note[4] for note in notes], self.wish.along, self.rooms(rows[0])[0])

    def evidence(self, batches: list[float], notes: list[list[float]], seen: list[float]) -> Evidence | None:
        return judged(seen, [note[0] for note in notes], batches, self.wish)

    def state(self) -> Any:
        return [self.kept, self.examples] if self.began else None

    def load(self, state: Any) -> None:
        self.began = state is not None
        if state is not None:
            self.kept, self.examples = state
