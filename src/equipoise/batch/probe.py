"""Three ways to estimate the noise of a gradient at a round. Each is a piggyback on the sync's message.

- `workers`: the workers' gradients of one local step differ by their noise. One more vector is sent, one way; none
  where the sync averages gradients anyway. Not available on one worker.
- `examples`: gradients of a few single examples on each worker, for as many backward passes. Works on one worker too.
- `pseudo`: pseudo-gradients, from how far the local steps of a round moved each worker. Their mean follows from the
  average of the parameters, so only a few numbers are sent. Plain SGD only; biased low by
  O(learning rate x curvature x H).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..comm.fused_reduction import sum_in_order
from ..comm.piggyback import Piggyback
from ..core.context import Context
from ..core.device import numbers
from .noise import NoiseEstimate, across_workers

_BLOCK = 1 << 16  # elements whose products are added in the dtype of the vector; blocks are added in float64


class WorkerReport(NamedTuple):
    """What every worker sends with a test, whatever the probe."""

    batch: float
    loss: float
    busy: float  # seconds of computing since the last test
    samples: float  # examples consumed since the last test


class ProbeConfig(NamedTuple):
    """What a rule needs to know."""

    own: bool  # the noise of each worker's own gradient, not of their mean
    along: bool  # the variance along the gradient too
    examples: int  # per worker, where single ones are measured; 0: the entire batch
    first: bool  # measure the gradients of a round's first step, not its last


_REPORTED = len(WorkerReport._fields)
Decide = Callable[["NoiseEstimate | None", "list[WorkerReport]"], None]


class NoiseProbe(Piggyback):
    """One worker's side of a test. `decide` receives the estimate and all workers' reports."""

    def __init__(self, context: Context, config: ProbeConfig, decide: Decide):
        self.context, self.config, self.decide = context, config, decide
        self.busy = self.samples = 0.0  # since the last test
        self._buffers: list[torch.Tensor] = []
        self.init_state()

    def buffers(self, like: torch.Tensor, count: int = 1) -> list[torch.Tensor]:
        """Buffers for chunks, allocated once."""
        if len(self._buffers) < count or self._buffers[0].shape != like.shape:
            self._buffers = [torch.empty_like(like) for _ in range(count)]
        return self._buffers

    def metadata(self) -> list[float]:
        clock = self.context.clock
        return [*WorkerReport(float(clock.batch), clock.loss, self.busy, self.samples), *self.numbers()]

    def receive(self, metadata: list[list[float]], totals: list[float]) -> None:
        # Ranks of an island see statistics of their shards, and seconds of their own.
        told, totals = self.context.island.agree([number for row in metadata for number in row], totals)
        width = len(metadata[0])
        metadata = [told[start : start + width] for start in range(0, len(told), width)]
        reports = worker_reports(metadata)
        estimate = self.estimate([report.batch for report in reports], probe_numbers(metadata), totals)
        self.decide(estimate, reports)

    @abstractmethod
    def init_state(self) -> None:
        """Make the state of a fresh worker."""

    @abstractmethod
    def after_backward(self, testing: bool) -> None:
        """After every backward pass. testing: the next round carries a test."""

    @abstractmethod
    def measure(self) -> None:
        """At a step whose round carries a test: the gradient is this worker's own, neither clipped nor combined."""

    @abstractmethod
    def after_round(self) -> None:
        """A round has ended, with a test or without."""

    @abstractmethod
    def numbers(self) -> list[float]:
        """What this probe sends besides the report; always as many."""

    @abstractmethod
    def estimate(self, batches: list[float], numbers: list[list[float]], totals: list[float]) -> NoiseEstimate | None:
        """From all workers' batch sizes and numbers, and the statistics summed over chunks."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """State between rounds, for a checkpoint."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None: ...


def worker_reports(metadata: list[list[float]]) -> list[WorkerReport]:
    """All workers' reports, by rank."""
    return [WorkerReport(*row[:_REPORTED]) for row in metadata]


def probe_numbers(metadata: list[list[float]]) -> list[list[float]]:
    """All workers' `numbers`, by rank."""
    return [row[_REPORTED:] for row in metadata]


def statistics_count(size: int, config: ProbeConfig) -> int:
    """How many numbers `chunk_statistics` returns."""
    return 1 + size + (0 if not config.along else size**2 if config.own else size)


def chunk_statistics(
    rows: list[torch.Tensor], scales: list[float], sizes: list[float], config: ProbeConfig, mean: torch.Tensor
) -> list[float]:
    """Of chunks of vectors that come multiplied by `scales`: |v|^2, all |v_m|^2 and, for the variance along the
    gradient, all <v_m, v>; for that along each worker's own, all <v_l, v_m>.

    `mean` is a buffer for the chunk of v: allocating a large one at each round costs more than filling it.
    """
    mean_of(rows, scales, sizes, mean)
    scaled = list(zip(rows, scales, strict=True))
    terms = [(mean, mean, 1.0), *((r, r, s**2) for r, s in scaled)]
    if config.along and config.own:
        terms += [(a, b, s * t) for a, s in scaled for b, t in scaled]
    elif config.along:
        terms += [(r, mean, s) for r, s in scaled]
    known = iter(products([(a, b) for a, b, scale in terms if scale]))
    return [next(known) / scale if scale else 0.0 for *_, scale in terms]


def estimate_across_workers(
    totals: list[float], sizes: list[float], batches: list[float], config: ProbeConfig
) -> NoiseEstimate | None:
    count = len(sizes)
    norms, products = totals[1 : count + 1], totals[count + 1 :] if config.along else None
    return across_workers(norms, totals[0], sizes, batches, own=config.own, products=products)


def mean_of(rows: list[torch.Tensor], scales: list[float], weights: list[float], out: torch.Tensor) -> torch.Tensor:
    """The weighted mean of vectors that come multiplied by `scales`."""
    total = sum_in_order(weights)
    out.zero_()
    for row, scale, weight in zip(rows, scales, weights, strict=True):
        if weight:
            out.add_(row, alpha=weight / total / scale)
    return out


def product(a: torch.Tensor, b: torch.Tensor) -> float:
    """<a, b>, accurate also for long vectors."""
    return products([(a, b)])[0]


def products(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """<a, b> of every pair; the host reads them from a device together."""
    blocks = [_dots(a, b) for a, b in pairs]
    read = iter(numbers(*(dot for dots in blocks for dot in dots)))
    return [sum_in_order([next(read) for _ in dots]) for dots in blocks]


def _dots(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    if a.dtype not in (torch.float32, torch.float64):
        a, b = a.float(), b.float()
    if len(a) <= _BLOCK:
        return [torch.dot(a, b)]
    return [torch.dot(x, y) for x, y in zip(torch.split(a, _BLOCK), torch.split(b, _BLOCK), strict=True)]
