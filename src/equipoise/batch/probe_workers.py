from __future__ import annotations

from typing import Any

import torch

from .evidence import Evidence
from .probe import Probe, judged, seen_of


class Workers(Probe):
    """The gradients of the workers' last steps: v_m is that of worker m's batch."""

    def begin(self) -> None:
        self.kept: torch.Tensor | None = None
        self.findings = 1 + self.context.size * (2 if self.wish.along else 1)

    def stepped(self) -> None: ...

    def measure(self) -> None:
        flat = self.context.flat
        assert flat is not None
        # Clipping and optimizers may change gradients in place; a sync that averages them has them before that.
        self.kept = None if self.context.averages == "gradient" else flat.copy_gradient(self.kept)

    def passed(self) -> None: ...

    def numbers(self) -> list[float]:
        return []

    def vector(self, averaged: str) -> torch.Tensor | None:
        return None if averaged == "gradient" else self.kept

    def look(self, rows: list[torch.Tensor], scales: list[float], notes: list[list[float]], start: int) -> list[float]:
        return seen_of(rows, scales, [note[0] for note in notes], self.wish.along, self.rooms(rows[0])[0])

    def evidence(self, batches: list[float], notes: list[list[float]], seen: list[float]) -> Evidence | None:
        return judged(seen, batches, batches, self.wish)

    def state(self) -> None: ...

    def load(self, state: Any) -> None: ...
