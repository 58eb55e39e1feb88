from __future__ import annotations

from typing import Any

import torch

from .noise import NoiseEstimate
from .probe import NoiseProbe, chunk_statistics, estimate_across_workers, probe_numbers, statistics_count


class WorkersProbe(NoiseProbe):
    """The gradients of the workers' batches: v_m is that of worker m's last local step.

    By then the workers' parameters differ, which adds to V. At the first step they are still equal: with `first` its
    gradient, and the number of examples in it, are kept until the round that sends them.
    """

    def init_state(self) -> None:
        self.gradient: torch.Tensor | None = None  # v_m; None where the sync sends it anyway
        self.examples = 0.0  # in v_m
        self.measured = False  # has v_m been taken since the last round?
        self.outputs = statistics_count(self.context.size, self.config)

    def after_backward(self, testing: bool) -> None:
        if self.config.first and testing and not self.measured:
            self.keep_gradient()

    def measure(self) -> None:
        if not self.config.first:
            self.keep_gradient()

    def keep_gradient(self) -> None:
        flat = self.context.flat
        assert flat is not None
        # A copy: clipping and optimizers may change gradients in place. A sync that averages them does so before that.
        self.gradient = None if self.context.averages == "gradient" else flat.copy_gradient(self.gradient)
        self.measured, self.examples = True, float(self.context.clock.batch)

    def after_round(self) -> None:
        self.measured = False

    def numbers(self) -> list[float]:
        return [self.examples]

    def vector(self, averaged: str) -> torch.Tensor | None:
        return None if averaged == "gradient" else self.gradient

    def map_chunk(
        self, rows: list[torch.Tensor], scales: list[float], metadata: list[list[float]], start: int
    ) -> list[float]:
        sizes = _examples(probe_numbers(metadata))
        return chunk_statistics(rows, scales, sizes, self.config, self.buffers(rows[0])[0])

    def estimate(self, batches: list[float], numbers: list[list[float]], totals: list[float]) -> NoiseEstimate | None:
        return estimate_across_workers(totals, _examples(numbers), batches, self.config)

    def state(self) -> dict[str, Any]:
        return {"gradient": self.gradient, "examples": self.examples} if self.measured else {}

    def load(self, state: dict[str, Any]) -> None:
        self.measured = bool(state)
        if state:
            self.gradient, self.examples = state["gradient"], state["examples"]


def _examples(numbers: list[list[float]]) -> list[float]:
    """n_m of all workers, the only number that this probe sends."""
    return [examples for (examples,) in numbers]
