from __future__ import annotations

from typing import Any

import torch

from .noise import NoiseEstimate
from .probe import NoiseProbe, chunk_statistics, estimate_across_workers

_EXAMPLES = 4  # where the number of examples in the kept gradient stands in the metadata


class WorkersProbe(NoiseProbe):
    """The gradients of the workers' batches: v_m is that of worker m's last local step.

    By then workers are apart, and V holds their disagreement too. At the first step they are still at one point: its
    gradient is kept until the round that tells of it, with the number of examples in it.
    """

    def init_state(self) -> None:
        self.kept: torch.Tensor | None = None
        self.examples = 0.0  # in the gradient that is kept
        self.began = False  # is it one of the round under way?
        self.outputs = 1 + self.context.size * (2 if self.config.along else 1)

    def after_backward(self, testing: bool) -> None:
        if self.config.first and testing and not self.began:
            self.keep()

    def measure(self) -> None:
        if not self.config.first:
            self.keep()

    def keep(self) -> None:
        flat = self.context.flat
        assert flat is not None
        # Clipping and optimizers may change gradients in place; a sync that averages them has them before that.
        self.kept = None if self.context.averages == "gradient" else flat.copy_gradient(self.kept)
        self.began, self.examples = True, float(self.context.clock.batch)

    def after_round(self) -> None:
        self.began = False

    def numbers(self) -> list[float]:
        return [self.examples]

    def vector(self, averaged: str) -> torch.Tensor | None:
        return None if averaged == "gradient" else self.kept

    def map_chunk(
        self, rows: list[torch.Tensor], scales: list[float], metadata: list[list[float]], start: int
    ) -> list[float]:
        return chunk_statistics(
            rows, scales, [row[_EXAMPLES] for row in metadata], self.config.along, self.buffers(rows[0])[0]
        )

    def estimate(self, batches: list[float], numbers: list[list[float]], totals: list[float]) -> NoiseEstimate | None:
        return estimate_across_workers(totals, [row[0] for row in numbers], batches, self.config)

    def state(self) -> dict[str, Any]:
        return {"kept": self.kept, "examples": self.examples} if self.began else {}

    def load(self, state: dict[str, Any]) -> None:
        self.began = bool(state)
        if state:
            self.kept, self.examples = state["kept"], state["examples"]
