"""How well an order is balanced: the largest prefix sum of centred gradients, relative to that of a random order."""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple

import torch

from ..core.context import Context
from ..signal.base import GradientView
from .sign_terms import TermSigns

_SNAPSHOTS = 64  # prefixes kept per epoch


class EpochStatistics(NamedTuple):
    """What one worker knows of its prefixes in this epoch."""

    shape: tuple[int, ...]  # of its snapshots
    counts: list[int]  # examples before each snapshot
    squares: float  # sum of squared norms, per unit
    terms: int
    cross: float  # sum over batches of the mean squared cosine between terms
    batches: int  # that `cross` sums over
    complete: bool  # have all its examples been visited?


class PrefixNorm:
    """`herding` = max_k || sum_{t<=k} (g_t - mean) || / the same of a random order, once per epoch.

    `over_workers`: of the sum over all workers (they must be in lockstep); otherwise of this worker's own block.

    Prefixes are taken at the ends of batches and on a sample of the coordinates, so that a step costs nothing extra.
    The largest prefix of a random order is that of a Brownian bridge: half of sqrt(N) times the standard deviation of
    one example, and somewhat more in few dimensions. 1 is a random order; the floor that balancing reaches is about
    sqrt(effective dimension / N).
    """

    def __init__(self, context: Context, over_workers: bool):
        self.context, self.over_workers = context, over_workers
        self.herding = math.nan
        self.dimension = math.nan  # effective: 1 / mean squared cosine between different terms
        self.warned = False
        self._clear()

    def _clear(self) -> None:
        self.prefix: torch.Tensor | None = None
        self.examples, self.steps, self.stride = 0, 0, 1
        self.snapshots: list[torch.Tensor] = []
        self.counts: list[int] = []
        self.squares, self.terms, self.cross, self.batches = 0.0, 0, 0.0, 0
        self.scale, self.done = 1.0, False

    def add(self, view: GradientView) -> None:
        """Extend the prefix by a batch."""
        if view.sample is None:
            return
        sample = view.sample.detach()
        self.scale = view.dimension / len(sample)
        self.prefix = sample.clone() if self.prefix is None else self.prefix + sample
        self.examples += sum(view.sizes)

    def record(self, signed: TermSigns, units: int) -> None:
        """Called after every step, also one without terms: snapshots of all workers belong to the same steps."""
        squares = float(signed.squares.sum())
        if math.isfinite(squares):  # squares of finite gradients may overflow
            self.squares += squares / units  # a difference has the variance of both its units
            self.terms += len(signed.signs)
        if len(signed.squares) and 0 < signed.cross < math.inf:  # False also where it is nan
            self.cross += signed.cross / max((squares / len(signed.squares)) ** 2, 1e-300)
            self.batches += 1
        self.steps += 1
        if self.steps % self.stride == 0 and self.prefix is not None:
            self.snapshots.append(self.prefix)
            self.counts.append(self.examples)
            if len(self.snapshots) == 2 * _SNAPSHOTS:
                self.snapshots, self.counts, self.stride = self.snapshots[1::2], self.counts[1::2], 2 * self.stride

    def next_epoch(self) -> None:
        if not self.done:
            self._compute(only_complete=False)
        self._clear()

    def read(self) -> float:
        """`herding` of the last complete epoch: this one, if it has ended. Collective where `over_workers`."""
        if not self.done:
            self._compute(only_complete=True)
        return self.herding

    def _compute(self, only_complete: bool) -> None:
        prefixes = torch.stack(self.snapshots) if self.snapshots else torch.zeros(0)
        comm = self.context.comm
        complete = self.examples >= self.context.worker.examples
        own = EpochStatistics(
            tuple(prefixes.shape), self.counts, self.squares, self.terms, self.cross, self.batches, complete
        )
        rows: list[EpochStatistics] = comm.gather_objects(own) if self.over_workers else [own]
        if only_complete and not all(row.complete for row in rows):
            return
        self.done = True
        usable = prefixes.numel() > 0 and len({row.shape for row in rows}) == 1
        terms, batches = sum(row.terms for row in rows), sum(row.batches for row in rows)
        if usable and terms:
            if self.over_workers:
                with comm.uncounted():
                    comm.sum(prefixes)
            counts = torch.tensor([row.counts for row in rows], dtype=prefixes.dtype, device=prefixes.device).sum(0)
            centred = prefixes - (counts / counts[-1])[:, None] * prefixes[-1]
            largest = float(centred.norm(dim=1).max()) * math.sqrt(self.scale)
            variance = sum(row.squares for row in rows) / terms
            self.dimension = 1 / (sum(row.cross for row in rows) / batches) if batches else math.nan
            expected = random_prefix(float(counts[-1]), variance, self.dimension)
            self.herding = largest / expected if expected else math.nan
            self.warned = warn_of_dimension(self.context, self.warned, self.dimension, float(counts[-1]))

    def state(self) -> dict[str, Any]:
        values = {name: value for name, value in vars(self).items() if name not in ("context", "over_workers")}
        return {name: _copied(value) for name, value in values.items()}

    def load(self, state: dict[str, Any]) -> None:
        vars(self).update({name: _copied(value) for name, value in state.items()})


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return list(value) if isinstance(value, list) else value


def random_prefix(examples: float, variance: float, dimension: float) -> float:
    """The largest prefix norm to expect of a random order of N examples with this total variance.

    0.5 sqrt(N variance) is the middle of the bridge; the maximum over the bridge is 1.74 times that in one dimension
    and about the same as the middle in very many.
    """
    in_few_dimensions = 1.0 if math.isnan(dimension) else 1 + 0.74 / max(1.0, dimension) ** 0.33
    return 0.5 * math.sqrt(examples * variance) * in_few_dimensions


def warn_of_dimension(context: Context, warned: bool, dimension: float, examples: float) -> bool:
    """Say once where balancing cannot gain; returns whether it has been said."""
    if dimension > examples / 2 and not warned and context.rank == 0:
        logging.getLogger("equipoise").warning(
            "nothing to gain from a balanced order: the gradients have an effective dimension of about %d for %d "
            "examples; --order reshuffle or flip-flop is as good and free",
            dimension,
            examples,
        )
        return True
    return warned
