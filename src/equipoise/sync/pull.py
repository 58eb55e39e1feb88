"""A centre of weighted models, and the pull towards it: what MGRAWA and LGRAWA share, and with them the others here.

A worker is pulled as  x <- (1 - pull) x + pull c.  Whatever the weights, this leaves the weighted mean where it is,
brings all workers nearer to it and to each other by the factor 1 - pull, and cannot raise the weighted mean of a
convex loss.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..comm.base import Stream
from ..comm.ledger import mean_cost
from ..core.context import Context
from ..core.errors import UserError
from ..core.method import option
from ..core.vector import ModelSize
from .base import Sync
from .norms import SOURCES, Norms
from .shares import BY, HELP, mean_of, scale_of, shares_of

_LARGEST = 60.0  # of |log weight|: what float32 can carry together with the model it multiplies


@dataclass
class GradientWeighted(Sync):
    """Final here: everything but what counts as one gradient. A method says how layers are weighed."""

    STATE: ClassVar[tuple[str, ...]] = ("middle", "own", "pace", "since", "measured")
    HEALTH: ClassVar[tuple[str, ...]] = ("largest_weight", "gradient_norm")

    pull: float = option(
        0.5, help="how far a round draws a worker to the centre: 0 not at all, 1 all the way", least=0, most=1
    )
    prox: float = option(
        0.0, help="pull to the last centre between rounds, spread over the steps of a round", least=0, most=1
    )
    exponent: float = option(1.0, help="p in the weights 1 / norm^p; 0 weighs all alike", least=0, most=16)
    source: str = option(
        "train", help="gradients that are measured: of the last training steps, the last one, fresh", choices=SOURCES
    )
    smoothing: float = option(
        0.43, help="of norms over rounds (source train: over steps); 0 keeps the last", least=0, below=1
    )
    examples: int | None = option(None, help="of a fresh batch; as many as in a training batch if left out", least=1)
    debias: bool = option(False, help="take the noise of the batch off the norm; needs source = fresh")
    epsilon: float = option(1e-8, help="norms below this count as this", above=0)
    weights: str = option("size", help=HELP, choices=BY)

    def check(self) -> None:
        if self.debias and self.source != "fresh":
            raise UserError("debias measures a batch in parts: pass source='fresh' with it")
        if self.examples is not None and self.source != "fresh":
            raise UserError("examples is the size of a fresh batch: pass source='fresh' with it")

    @abstractmethod
    def levels(self, norms: torch.Tensor) -> torch.Tensor:
        """The norms that get a weight each, from those of the layers: one for the model, or one for each layer."""

    def weight_count(self, layers: int) -> int:
        """How many weights travel with a model of so many layers."""
        return len(self.levels(torch.zeros(layers)))

    def init_state(self) -> None:
        self.norms = Norms(self.context, self.source, self.smoothing, self.examples, self.debias)
        self.levelled = self.weight_count(len(self.flat.slices))
        self.middle: torch.Tensor | None = None
        self.pace = self.since = 0  # this worker's steps in the last round and in this one
        self.own = torch.zeros(self.levelled, dtype=torch.float64)  # its share of the last centre

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> None:
        if self.middle is None:
            self.middle = x.clone()  # not in `init_state`: a model may be loaded between that and the first step
        self.since += 1
        self.norms.step(self.pace - self.since)  # a round as long as the one before
        approach(x, self.middle, self.prox, self.pace)

    def after_step(self, x: torch.Tensor) -> None:
        assert self.middle is not None
        norms = self.norms.at_round()
        finite = bool(x.sum().isfinite())
        weights = self.own.new_zeros(self.levelled)
        if norms is not None and finite:
            weights = inverse_powers(self.levels(norms), self.exponent, self.epsilon)
            weights *= scale_of(self.context, self.weights)
        totals = self._round(x, weights, finite)
        self.context.clock.rounds += 1
        self.own = torch.where(totals > 0, weights / totals, 0.0)
        if not finite:
            x.copy_(self.middle)  # a model that was lost goes on from the others'
        self.pace, self.since = self.since, 0

    def _round(self, x: torch.Tensor, weights: torch.Tensor, pulled: bool) -> torch.Tensor:
        """Replace the centre by sum_m w_m x_m / sum_m w_m and pull x to it; the sums of w by layer.

        One collective of [w x | w]. The sums of w come first: with them the rest is used where it lies. Where all weights are
        zero the centre stays what it was.
        """
        assert self.middle is not None
        length, layers, middle, factors = len(x), self._layers(), self.middle, weights.tolist()
        dtype = torch.promote_types(x.dtype, torch.float32)
        totals = torch.empty_like(weights)

        def fill(start: int, out: torch.Tensor) -> None:
            stop = start + len(out)
            if stop > length:
                tail = max(start, length)
                out[tail - start :].copy_(weights[tail - length : stop - length])
            for layer, a, b in _within(layers, start, stop):
                part = out[a - start : b - start]
                torch.mul(x[a:b].to(dtype), factors[layer], out=part) if factors[layer] else part.zero_()

        def take(start: int, total: torch.Tensor) -> None:
            stop = start + len(total)
            if stop > length:
                tail = max(start, length)
                totals[tail - length : stop - length].copy_(total[tail - start :])
            for layer, a, b in _within(layers, start, stop):
                if (weight := float(totals[layer])) > 0:
                    torch.div(total[a - start : b - start], weight, out=middle[a:b])
                    if pulled:
                        x[a:b].lerp_(middle[a:b], self.pull)

        self.context.comm.sum_stream(Stream(length + self.levelled, dtype, x.device, fill, take))
        return totals

    def _layers(self) -> list[tuple[int, int]]:
        """Start and stop of what shares a weight: the whole vector, or a layer."""
        slices = self.flat.slices
        return [(0, slices[-1].stop)] if self.levelled == 1 else [(s.start, s.stop) for s in slices]

    @property
    def largest_weight(self) -> float:
        """The largest share that one worker has in the centre, on average over layers: 1 / N when all weigh alike."""
        return float(self.context.comm.gather(self.own.mean()).max())

    @property
    def gradient_norm(self) -> float:
        """The norm of the gradients as it was measured last, on average over workers."""
        norms = self.norms.level()
        return float(self.context.comm.mean(self.own.new_zeros(1) if norms is None else norms.norm().reshape(1)))

    @property
    def measured(self) -> dict[str, Any]:
        return self.norms.state_dict()

    @measured.setter
    def measured(self, state: dict[str, Any]) -> None:
        self.norms.load_state_dict(state)

    def mean_shares(self) -> list[float]:
        return shares_of(self.context, self.weights)

    def centre(self) -> torch.Tensor | None:
        return self.middle

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        return (
            mean_cost(model.elements + self.weight_count(model.layers), max(model.itemsize, 4), rank, size)
            if due
            else (0, 0)
        )


def _within(layers: list[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The layers that have elements from start to stop: which, and from where to where."""
    for number in range(bisect_right(layers, start, key=lambda layer: layer[1]), len(layers)):
        a, b = layers[number]
        if a >= stop:
            break
        yield number, max(a, start), min(b, stop)


def inverse_powers(norms: torch.Tensor, exponent: float, epsilon: float) -> torch.Tensor:
    """Weights 1 / n^p, up to a common factor; finite and above zero for whatever norms."""
    return torch.exp((-exponent * norms.clamp(min=epsilon).log()).clamp(-_LARGEST, _LARGEST))


def approach(x: torch.Tensor, centre: torch.Tensor, prox: float, pace: int) -> None:
    """One step's part of the pull between rounds: none before the first, whose centre is the common start."""
    if prox and pace:
        x.lerp_(centre, prox / pace)


def elastic(context: Context, x: torch.Tensor, centre: torch.Tensor, pull: float, weights: str) -> None:
    """The round of EASGD: workers and centre attract each other, and their sum stays (workers times N pi_m)."""
    mean = mean_of(context, x.clone(), shares_of(context, weights))
    x.lerp_(centre, pull / context.size)
    centre.lerp_(mean, pull)
