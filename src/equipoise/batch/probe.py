"""Three ways to see the noise of a gradient at a round. Each rides along with the sync's message.

- `workers`: the workers' gradients of one local step are samples of one another's noise. One more vector travels, one
  way; none where the sync averages gradients anyway. Says nothing on one worker.
- `examples`: gradients of a few single examples on each worker, for as many backward passes. Works on one worker too.
- `pseudo`: how far the local steps of a round took each worker. The mean falls out of the average of the parameters, so a few
  numbers are all that travels. Plain SGD only; too low by O(learning rate x curvature x H).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..comm.fused_reduction import add
from ..comm.piggyback import Rider
from ..core.context import Context
from .noise import Evidence, across_workers

_BLOCK = 1 << 16  # elements whose products are added in the dtype of the vector; blocks are added in float64

Decide = Callable[[Evidence | None, list[list[float]]], None]


class Wish(NamedTuple):
    """What a rule wants to know."""

    own: bool  # of each worker's own gradient, or of their mean
    along: bool  # the variance along the gradient too
    examples: int  # per worker, where single ones are looked at; 0: the whole batch
    first: bool  # at the gradients of a round's first step, not its last


class Probe(Rider):
    """One worker's eyes. Notes begin with batch, loss, seconds of computing and examples in them; `decide` gets them too."""

    def __init__(self, context: Context, wish: Wish, decide: Decide):
        self.context, self.wish, self.decide = context, wish, decide
        self.pace = (0.0, 0.0)
        self._rooms: list[torch.Tensor] = []
        self.begin()

    def rooms(self, like: torch.Tensor, count: int = 1) -> list[torch.Tensor]:
        """Room for pieces, made once."""
        if len(self._rooms) < count or self._rooms[0].shape != like.shape:
            self._rooms = [torch.empty_like(like) for _ in range(count)]
        return self._rooms

    def note(self) -> list[float]:
        return [float(self.context.clock.batch), self.context.loss, *self.pace, *self.numbers()]

    def arrive(self, notes: list[list[float]], seen: list[float]) -> None:
        self.decide(self.evidence([note[0] for note in notes], [note[4:] for note in notes], seen), notes)

    @abstractmethod
    def begin(self) -> None:
        """Make the state of a fresh worker."""

    @abstractmethod
    def stepped(self, testing: bool) -> None:
        """After every backward pass; will the round under way carry a test?"""

    @abstractmethod
    def measure(self) -> None:
        """At a step whose round carries a test: the gradient is this worker's own, neither clipped nor combined."""

    @abstractmethod
    def passed(self) -> None:
        """A round has ended, with a test or without."""

    @abstractmethod
    def numbers(self) -> list[float]:
        """What this probe adds to the note."""

    @abstractmethod
    def evidence(self, batches: list[float], notes: list[list[float]], seen: list[float]) -> Evidence | None:
        """From everybody's batch sizes and numbers, and what was seen of the pieces."""

    @abstractmethod
    def state(self) -> Any:
        """What a checkpoint in the middle of a round must keep."""

    @abstractmethod
    def load(self, state: Any) -> None: ...


def seen_of(
    rows: list[torch.Tensor], scales: list[float], sizes: list[float], along: bool, mean: torch.Tensor
) -> list[float]:
    """Of pieces of vectors that come multiplied by `scales`: |v|^2, all |v_m|^2 and, if asked for, all <v_m, v>.

    `mean` is room for the piece of v: allocating a large one at each round costs more than filling it.
    """
    mean_of(rows, scales, sizes, mean)
    norms = [product(r, r) / s**2 if s else 0.0 for r, s in zip(rows, scales, strict=True)]
    products = [product(r, mean) / s if s else 0.0 for r, s in zip(rows, scales, strict=True)] if along else []
    return [product(mean, mean), *norms, *products]


def judged(seen: list[float], sizes: list[float], batches: list[float], wish: Wish) -> Evidence | None:
    count = len(sizes)
    norms, products = seen[1 : count + 1], seen[count + 1 :] if wish.along else None
    return across_workers(norms, seen[0], sizes, batches, own=wish.own, products=products)


def mean_of(rows: list[torch.Tensor], scales: list[float], weights: list[float], out: torch.Tensor) -> torch.Tensor:
    """The weighted mean of vectors that come multiplied by `scales`."""
    whole = add(weights)
    out.zero_()
    for row, scale, weight in zip(rows, scales, weights, strict=True):
        if weight:
            out.add_(row, alpha=weight / whole / scale)
    return out


def product(a: torch.Tensor, b: torch.Tensor) -> float:
    """<a, b>, accurate for long vectors too."""
    if a.dtype not in (torch.float32, torch.float64):
        a, b = a.float(), b.float()
    if len(a) <= _BLOCK:
        return torch.dot(a, b).item()
    total = 0.0
    for x, y in zip(a.split(_BLOCK), b.split(_BLOCK), strict=True):
        total += torch.dot(x, y).item()
    return total
