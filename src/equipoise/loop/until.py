"""A target that ends a run: `accuracy=0.85` or `loss=0.3`, judged at evaluations of the mean (or centre) model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import UserError

if TYPE_CHECKING:
    from .worker import Worker


_BETTER = {"accuracy": "at least", "loss": "at most"}


class Until(NamedTuple):
    metric: str
    target: float

    @classmethod
    def parse(cls, text: Any, where: str = "until") -> Until:
        metric, _, value = str(text).partition("=")
        metric = metric.strip()
        try:
            target = float(value)
        except ValueError:
            target = math.nan
        if metric not in _BETTER or not math.isfinite(target):
            raise UserError(f"{where} = {text!r}: write accuracy=0.85 or loss=0.3")
        if metric == "accuracy" and not 0 < target <= 1:
            raise UserError(f"{where} = {text!r}: accuracy is a part of all examples, above 0 and at most 1")
        return cls(metric, target)

    def __str__(self) -> str:
        return f"{self.metric}={self.target:g}"

    def met_by(self, value: float) -> bool:
        return value >= self.target if self.metric == "accuracy" else value <= self.target

    def met(self, models: dict[str, dict[str, float]]) -> bool:
        """Has the mean or the centre model reached the target?"""
        metrics = [models[name] for name in ("mean", "centre") if name in models]
        if metrics:
            self.check_measured(metrics[0])
        return any(self.met_by(each[self.metric]) for each in metrics)

    def check_measured(self, metrics: Iterable[str]) -> None:
        if self.metric not in metrics:
            raise UserError(f"until {self}: {self.metric} is not measured on this data; known: {', '.join(metrics)}")


def standing(worker: Worker, until: Until) -> dict[str, Any]:
    """What the target has cost all workers so far; they call it together."""
    clock, comm = worker.clock, worker.comm
    own = (clock.step, clock.samples, clock.rounds, comm.ledger.bytes, clock.seconds, comm.now)
    steps, samples, rounds, sent, seconds, now = zip(*comm.gather_objects(own), strict=True)
    departed = worker.departed
    return {
        "metric": until.metric,
        "target": until.target,
        "step": sum(steps) // len(steps),
        "samples": sum(samples) + departed.samples,
        "rounds": max(rounds),
        "bytes": sum(sent) + departed.bytes,
        "seconds": max(seconds),
        "simulated_seconds": max(now) if worker.job.described else None,
    }
