"""What MGRAWA and LGRAWA share: a centre of models weighted by inverse gradient norms, and the pull towards it.

A worker is pulled as  x <- (1 - pull) x + pull c.  Whatever the weights, this leaves the weighted mean unchanged,
scales all distances to it and between workers by 1 - pull, and cannot raise the weighted mean of a convex loss.
With a delay the sums of a round travel during the next local steps. A worker is then pulled by the distance it had when
it sent, x <- x + pull (c - x_sent), and keeps the steps that it took meanwhile.
With `shrink` weights are 1 / n^(p r), where r is the part of the differences between norms that is not their noise.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..comm.base import Stream
from ..comm.ledger import gather_cost, mean_cost
from ..core.errors import UserError
from ..core.method import option
from ..core.vector import ModelSize
from ..wire.channel import SumChannel, sum_cost
from .base import Needs, StepPlan, Sync
from .gradient_norms import SOURCES, GradientNorms
from .initial_model import copy_once
from .late_sums import LateSums
from .overlapped_mean import overlapped_cost
from .proximal import proximal_step
from .reliability import Reliability, count, noise_of
from .shares import BY, HELP, scale_of, shares_of

_MAX_LOG_WEIGHT = 60.0  # float32 can carry such a weight times a parameter
_LARGE_NORM = 30.0  # the logarithm of a norm that only a lost run has


@dataclass
class GradientWeighted(Sync):
    """Final here: everything except which layers share a weight, which a method fills in as `pool_norms`."""

    centre_state: ClassVar[str] = "centre_model"
    STATE: ClassVar[tuple[str, ...]] = (
        "centre_model",
        "own_weights",
        "last_round_steps",
        "round_steps",
        "norm_state",
        "weight_units",
        "moments",
        "late_state",
    )
    LATE: ClassVar[dict[str, type]] = {"late_state": dict}
    COMMON: ClassVar[tuple[str, ...]] = ("centre_model", "last_round_steps", "round_steps", "weight_units", "moments")
    OWN: ClassVar[tuple[str, ...]] = ("norm_state",)
    HOST: ClassVar[tuple[str, ...]] = ("own_weights", "norm_state", "weight_units", "moments")
    HEALTH: ClassVar[tuple[str, ...]] = ("largest_weight", "gradient_norm", "reliability")
    in_flight: ClassVar[tuple[str, ...]] = ("late_state",)

    pull: float = option(
        0.5, help="how far a round pulls a worker to the centre: 0 not at all, 1 completely", least=0, most=1
    )
    prox: float = option(
        0.0, help="pull to the last centre between rounds, spread over the steps of a round", least=0, most=1
    )
    exponent: float = option(1.0, help="p in the weights 1 / norm^p; 0 weighs all alike", least=0, most=16)
    shrink: bool = option(
        False, help="weigh by differences between norms only as far as they exceed their noise; not with source = fresh"
    )
    source: str = option(
        "train", help="gradients that are measured: of the last training steps, the last one, fresh", choices=SOURCES
    )
    smoothing: float = option(
        0.43, help="of norms over rounds (source train: over steps); 0 keeps the last", least=0, below=1
    )
    examples: int | None = option(None, help="of a fresh batch; as many as in a training batch if left out", least=1)
    debias: bool = option(False, help="subtract the noise of the batch from the norm; needs source = fresh")
    epsilon: float = option(1e-8, help="norms below this count as this", above=0)
    weights: str = option("size", help=HELP, choices=BY)
    delay: int = option(0, help="local steps that the sums of a round overlap with; 0 waits for them", least=0)

    def check(self) -> None:
        if self.debias and self.source != "fresh":
            raise UserError("debias measures a batch in parts: pass source='fresh' with it")
        if self.examples is not None and self.source != "fresh":
            raise UserError("examples is the size of a fresh batch: pass source='fresh' with it")
        if self.shrink and self.source == "fresh":
            raise UserError("shrink needs noise that each worker has alone: pass source='train' or 'last' with it")

    def needs(self) -> Needs:
        return Needs(due_before_step=self.delay > 0)  # workers must count the steps of the delay alike

    @abstractmethod
    def pool_norms(self, norms: torch.Tensor) -> torch.Tensor:
        """From the norms of the layers, those that get a weight each: one for the model, or one per layer."""

    def weight_count(self, layers: int) -> int:
        """The number of weights that travel with a model of so many layers."""
        return len(self.pool_norms(torch.zeros(layers)))

    def init_state(self) -> None:
        self.norms = GradientNorms(self.context, self.source, self.smoothing, self.examples, self.debias)
        self.num_weights = self.weight_count(len(self.flat.slices))
        wire = self.context.wire
        self.channel = wire.sums("centre", feedback=False) if wire is not None else None
        self.late = LateSums(self.context, self.channel, self.delay)
        self.centre_model: torch.Tensor | None = None
        self.own_weights = torch.zeros(self.num_weights, dtype=torch.float64)  # of this worker in the last centre
        self.weight_units = torch.ones_like(self.own_weights)  # through a wire: the last sums, the same on all workers
        self.trust = Reliability(self.num_weights)
        self.round_steps = 0  # steps of this worker since the last round
        self.last_round_steps = 0  # and in the round before it

    def before_step(self, x: torch.Tensor, g: torch.Tensor | None) -> StepPlan:
        self.centre_model = copy_once(self.centre_model, x)
        self.round_steps += 1
        self.norms.observe_step(self.last_round_steps - self.round_steps)  # expects a round as long as the last one
        proximal_step(x, self.centre_model, self.prox, self.last_round_steps)
        self.late.step()
        return StepPlan(message_arrives=self.late.arrive)

    def after_step(self, x: torch.Tensor) -> None:
        if self.late.arrive:
            self._receive(x)
        if not self.delay or self.context.clock.due:
            self._round(x)

    def _round(self, x: torch.Tensor) -> None:
        """Measure and weigh; then send and pull, or only send."""
        assert self.centre_model is not None
        norms, measured = self.norms.at_round(), self.norms.take_measured()
        finite = self.context.island.all(bool(x.sum().isfinite()))
        weights = self.own_weights.new_zeros(self.num_weights)
        logs = None
        if norms is not None and finite:
            logs = log_weights(self.pool_norms(norms), self._exponents(), self.epsilon)
        numbers = self._numbers(norms if finite else None, measured)
        if self._needs_reference():
            others = torch.full_like(weights, -torch.inf) if logs is None else logs
            largest = self.context.comm.gather(others).amax(0)
            logs = None if logs is None else logs - largest
        if logs is not None:
            weights = from_logs(logs) * scale_of(self.context, self.weights)
        self.last_round_steps, self.round_steps = self.round_steps, 0
        if self.delay:
            self._send(x, weights, numbers, finite)
            return
        if self.channel is None:
            totals = self._exchange(x, weights, numbers, finite)
        else:
            totals = self._exchange_through(self.channel, x, weights, numbers, finite)
        self.context.clock.rounds += 1
        self.own_weights = torch.where(totals > 0, weights / totals, 0.0)
        if not finite:
            x.copy_(self.centre_model)  # a diverged worker restarts from the other workers' models

    def _needs_reference(self) -> bool:
        """Can weights leave the range of float32, so that only ratios to the largest one can travel?"""
        return self.exponent * max(-math.log(self.epsilon), _LARGE_NORM) > _MAX_LOG_WEIGHT

    def _shrinks(self) -> bool:
        return self.shrink and self.exponent > 0

    def _exponents(self) -> torch.Tensor | float:
        return self.exponent * self.trust.values() if self._shrinks() else self.exponent

    def _numbers(self, norms: torch.Tensor | None, measured: list[torch.Tensor]) -> torch.Tensor:
        """What this worker adds to the sums, besides its model and weights, so that all learn what is noise."""
        if not self._shrinks():
            return self.own_weights.new_zeros(0)
        if norms is None:
            return self.trust.numbers(None, None)
        logs = torch.stack([self.pool_norms(each) for each in (*measured, norms)]).clamp(min=self.epsilon).log()
        return self.trust.numbers(logs[-1], noise_of(logs[:-1], self.smoothing, self.norms.count))

    def _exchange(self, x: torch.Tensor, weights: torch.Tensor, numbers: torch.Tensor, pulled: bool) -> torch.Tensor:
        """Replace the centre by sum_m w_m x_m / sum_m w_m and pull x to it; return the sums of w by layer.

        One all-reduce of [w x | w, numbers]. The sums of w arrive first, so the remaining sums are used in place. Where
        all weights are zero the centre stays what it was.
        """
        assert self.centre_model is not None
        length, layers, centre, factors = len(x), self._layers(), self.centre_model, weights.tolist()
        dtype = torch.promote_types(x.dtype, torch.float32)
        few = torch.cat([weights, numbers])
        totals = torch.empty_like(few)

        def fill(start: int, out: torch.Tensor) -> None:
            stop = start + len(out)
            if stop > length:
                tail = max(start, length)
                out[tail - start :].copy_(few[tail - length : stop - length])
            for layer, a, b in _layers_within(layers, start, stop):
                part = out[a - start : b - start]
                torch.mul(x[a:b].to(dtype), factors[layer], out=part) if factors[layer] else part.zero_()

        def take(start: int, total: torch.Tensor) -> None:
            stop = start + len(total)
            if stop > length:
                tail = max(start, length)
                totals[tail - length : stop - length].copy_(total[tail - start :])
            for layer, a, b in _layers_within(layers, start, stop):
                if (weight := float(totals[layer])) > 0:
                    torch.div(total[a - start : b - start], weight, out=centre[a:b])
                    if pulled:
                        x[a:b].lerp_(centre[a:b], self.pull)

        self.context.comm.sum_stream(Stream(length + len(few), dtype, x.device, fill, take))
        return self._take_numbers(totals)

    def _take_numbers(self, sums: torch.Tensor) -> torch.Tensor:
        """The sums of the weights, without those of the numbers that follow them."""
        if len(sums) > self.num_weights:
            self.trust.update(sums[self.num_weights :])
        return sums[: self.num_weights]

    def _exchange_through(
        self, channel: SumChannel, x: torch.Tensor, weights: torch.Tensor, numbers: torch.Tensor, pulled: bool
    ) -> torch.Tensor:
        """The same through a wire: c <- c + sum_m w_m C(x_m - c) / sum_m w_m, layer by layer."""
        distances, weights = self._distances(x, weights, pulled, torch.float32)
        totals = self._move_centre(*channel.sum(distances, torch.cat([weights, numbers]).tolist()))
        if pulled:
            assert self.centre_model is not None
            x.lerp_(self.centre_model, self.pull)
        return totals

    def _distances(
        self, x: torch.Tensor, weights: torch.Tensor, pulled: bool, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """w (x - c) by layer, and w. w is in units of the last sums: then codes span distances of a model's size."""
        assert self.centre_model is not None
        weights = weights / self.weight_units
        distances = torch.zeros(len(x), dtype=dtype, device=x.device)
        if pulled:
            distances.copy_(x - self.centre_model)
        for (a, b), weight in zip(self._layers(), weights.tolist(), strict=True):
            distances[a:b].mul_(weight)
        return distances, weights

    def _move_centre(self, total: torch.Tensor, sums: list[float]) -> torch.Tensor:
        """c <- c + sum_m w_m (x_m - c) / sum_m w_m from the two sums; returns those of the weights, by layer."""
        assert self.centre_model is not None
        totals = self._take_numbers(torch.tensor(sums, dtype=self.weight_units.dtype))
        for (a, b), weight in zip(self._layers(), totals.tolist(), strict=True):
            if weight > 0:
                self.centre_model[a:b].add_(total[a:b].div_(weight))
        totals = totals * self.weight_units
        self.weight_units = torch.where(totals > 0, totals, self.weight_units)
        return totals

    def _send(self, x: torch.Tensor, weights: torch.Tensor, numbers: torch.Tensor, finite: bool) -> None:
        """The sums of this round begin to travel."""
        if self.late.in_flight:
            raise UserError(
                f"{type(self).__name__}: delay={self.delay} is not shorter than the period: lower it, or raise the "
                "period"
            )
        dtype = torch.promote_types(x.dtype, torch.float32)
        distances, weights = self._distances(x, weights, finite, dtype)
        self.late.begin(distances, torch.cat([weights, numbers]), x if finite else None)

    def _receive(self, x: torch.Tensor) -> None:
        """They are there: c is the centre of the models that were sent;  x <- x + pull (c - x_sent)."""
        units = self.weight_units
        totals = self._move_centre(*self.late.end())
        self.context.clock.rounds += 1
        sent = torch.tensor(self.late.weights[: self.num_weights], dtype=totals.dtype) * units
        self.own_weights = torch.where(totals > 0, sent / totals, 0.0)
        assert self.centre_model is not None
        if self.late.model is None:
            x.copy_(self.centre_model)
        else:
            x.add_(self.centre_model - self.late.model, alpha=self.pull)

    def finish(self) -> None:
        self.late.drop()

    def restart(self, x: torch.Tensor, common: torch.Tensor, *, replaced: bool) -> None:
        if replaced:
            self.norms.forget()  # of another worker: without a measurement of its own it has no weight
            self.late.model = None  # nor a model that it sent

    def _layers(self) -> list[tuple[int, int]]:
        """Start and stop of each part that has a weight: the complete vector, or a layer."""
        slices = self.flat.slices
        return [(0, slices[-1].stop)] if self.num_weights == 1 else [(s.start, s.stop) for s in slices]

    @property
    def largest_weight(self) -> float:
        """The largest weight of a worker in the centre, averaged over layers: 1 / N when all weigh alike."""
        return float(self.context.comm.gather(self.own_weights.mean()).max())

    @property
    def gradient_norm(self) -> float:
        """The last estimate of the gradient norm, averaged over workers."""
        norms = self.norms.estimate()
        return float(
            self.context.comm.mean(self.own_weights.new_zeros(1) if norms is None else norms.norm().reshape(1))
        )

    @property
    def reliability(self) -> float:
        """The part of the differences between norms that is not noise, averaged over weights; 1 without `shrink`."""
        return float(self.trust.values().mean()) if self._shrinks() else 1.0

    @property
    def moments(self) -> torch.Tensor:
        return self.trust.moments

    @moments.setter
    def moments(self, value: torch.Tensor) -> None:
        self.trust.moments = value

    @property
    def norm_state(self) -> dict[str, Any]:
        return self.norms.state_dict()

    @norm_state.setter
    def norm_state(self, state: dict[str, Any]) -> None:
        self.norms.load_state_dict(state)

    @property
    def late_state(self) -> dict[str, Any] | None:
        return self.late.state()

    @late_state.setter
    def late_state(self, state: dict[str, Any] | None) -> None:
        self.late.load(state)

    def mean_shares(self) -> list[float]:
        return shares_of(self.context, self.weights)

    def cost(self, model: ModelSize, rank: int, size: int, due: bool, round: int = 0) -> tuple[int, int]:
        if not due:
            return 0, 0
        weights = self.weight_count(model.layers)
        few = weights + (count(weights) if self._shrinks() else 0)
        if model.wire is not None:
            messages, bytes = sum_cost(model, few, rank, size)
        elif self.delay:  # counted when the sums arrive
            messages, bytes = overlapped_cost(
                model._replace(itemsize=max(model.itemsize, 4)), 0, model.elements + few, rank, size
            )
        else:
            messages, bytes = mean_cost(model.elements + few, max(model.itemsize, 4), rank, size)
        more, numbers = gather_cost(weights, 8, size) if self._needs_reference() else (0, 0)
        return messages + more, bytes + numbers

    def takes_wires(self, size: int) -> tuple[str, str]:
        return "all", ""


def _layers_within(layers: list[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The layers that overlap with elements `start` to `stop`: number of the layer, start and stop of the overlap."""
    for number in range(bisect_right(layers, start, key=lambda layer: layer[1]), len(layers)):
        a, b = layers[number]
        if a >= stop:
            break
        yield number, max(a, start), min(b, stop)


def log_weights(norms: torch.Tensor, exponent: torch.Tensor | float, epsilon: float) -> torch.Tensor:
    """Logarithms of the weights 1 / n^p; finite for any norms."""
    return -exponent * norms.clamp(min=epsilon).log()


def from_logs(logs: torch.Tensor) -> torch.Tensor:
    """The weights, positive and within the range of float32."""
    return logs.clamp(-_MAX_LOG_WEIGHT, _MAX_LOG_WEIGHT).exp()
