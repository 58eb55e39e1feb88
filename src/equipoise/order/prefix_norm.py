"""How well an order is balanced: the largest prefix of centred gradients, against that of a random order."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch

from ..core.context import Context
from ..signal.base import GradientView
from .balance import Decided

_SNAPSHOTS = 64  # prefixes kept per epoch


class PrefixNorm:
    """`herding` = max_k || sum_{t<=k} (g_t - mean) || / the same of a random order, once per epoch.

    `together`: of the sum over all workers (they must be in step); otherwise of this worker's own block.

    Prefixes are taken at the ends of batches and in a sample of the coordinates, so that nothing is added to a step.
    A random order's largest prefix is that of a Brownian bridge: half of sqrt(N) times the spread of one example, and
    somewhat more in few dimensions. 1 is a random order; the floor that balancing reaches is about sqrt(effective
    dimension / N).
    """

    def __init__(self, context: Context, together: bool):
        self.context, self.together = context, together
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

    def saw(self, view: GradientView) -> None:
        if view.sample is None:
            return
        sample = view.sample.detach()
        self.scale = view.dimension / len(sample)
        self.prefix = sample.clone() if self.prefix is None else self.prefix + sample
        self.examples += sum(view.sizes)

    def decided(self, decided: Decided, units: int) -> None:
        """After every step, also one that gave nothing: snapshots of all workers belong to the same steps."""
        squares = float(decided.squares.sum())
        self.squares += squares / units  # a difference has the spread of both
        self.terms += len(decided.signs)
        if len(decided.squares) and decided.cross > 0:  # not where it is unknown
            self.cross += decided.cross / max((squares / len(decided.squares)) ** 2, 1e-300)
            self.batches += 1
        self.steps += 1
        if self.steps % self.stride == 0 and self.prefix is not None:
            self.snapshots.append(self.prefix)
            self.counts.append(self.examples)
            if len(self.snapshots) == 2 * _SNAPSHOTS:
                self.snapshots, self.counts, self.stride = self.snapshots[1::2], self.counts[1::2], 2 * self.stride

    def turn(self) -> None:
        """The next epoch begins."""
        if not self.done:
            self._compute(whole=False)
        self._clear()

    def read(self) -> float:
        """`herding` of the last whole epoch, this one if it is over. All workers ask together."""
        if not self.done:
            self._compute(whole=True)
        return self.herding

    def _compute(self, whole: bool) -> None:
        mine = torch.stack(self.snapshots) if self.snapshots else torch.zeros(0)
        comm = self.context.comm
        over = self.examples >= self.context.worker.examples
        own = (tuple(mine.shape), self.counts, self.squares, self.terms, self.cross, self.batches, over)
        rows = comm.gather_objects(own) if self.together else [own]
        if whole and not all(row[6] for row in rows):
            return
        self.done = True
        usable = mine.numel() > 0 and len({shape for shape, *_ in rows}) == 1
        terms, batches = sum(row[3] for row in rows), sum(row[5] for row in rows)
        if usable and terms:
            if self.together:
                with comm.uncounted():
                    comm.sum(mine)
            counts = torch.tensor([row[1] for row in rows], dtype=mine.dtype, device=mine.device).sum(0)
            centred = mine - (counts / counts[-1])[:, None] * mine[-1]
            largest = float(centred.norm(dim=1).max()) * math.sqrt(self.scale)
            spread = sum(row[2] for row in rows) / terms
            self.dimension = 1 / (sum(row[4] for row in rows) / batches) if batches else math.nan
            expected = random_prefix(float(counts[-1]), spread, self.dimension)
            self.herding = largest / expected if expected else math.nan
            self._warn(float(counts[-1]))

    def _warn(self, examples: float) -> None:
        if self.dimension > examples / 2 and not self.warned and self.context.rank == 0:
            self.warned = True
            logging.getLogger("equipoise").warning(
                "nothing to gain from a balanced order: the gradients have an effective dimension of about %d for %d examples; "
                "--order reshuffle or flip-flop is as good and free",
                self.dimension,
                examples,
            )

    def state(self) -> dict[str, Any]:
        return {
            name: value.clone()
            if isinstance(value, torch.Tensor)
            else list(value)
            if isinstance(value, list)
            else value
            for name, value in vars(self).items()
            if name not in ("context", "together")
        }

    def load(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def random_prefix(examples: float, spread: float, dimension: float) -> float:
    """The largest prefix norm to expect of a random order: N examples of variance `spread` (all coordinates together).

    0.5 sqrt(N spread) is the middle of the bridge; the maximum over the bridge is 1.74 times that in one dimension
    and the same in very many.
    """
    few = 1.0 if math.isnan(dimension) else 1 + 0.74 / max(1.0, dimension) ** 0.33
    return 0.5 * math.sqrt(examples * spread) * few
