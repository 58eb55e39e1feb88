"""The order of finalists that ran with several seeds.

A seed that is slow for one choice is often slow for all, so choices are compared seed by seed: the logarithm of the
ratio of two costs, its mean over the seeds that both have, and its standard error. One is behind when the mean exceeds
a margin and two standard errors. What is behind gets no more seeds, and never comes before one that went on: its seeds
may have been the easier ones.

Of those that remain, a difference below the margin decides nothing. There the upper end of the interval does: what a
slow run takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..compare.explain import MARGIN
from ..compare.plan import PlannedRun
from ..compare.table import Criterion, Spread

Costs = dict[str, dict[int, float]]  # by choice and seed; infinite where the target was not reached
_ERRORS = 2.0
_QUANTILES = {1: 3.078, 2: 1.886, 3: 1.638, 4: 1.533, 5: 1.476, 6: 1.440, 7: 1.415}  # Student's t, 90 %


def costs_of(runs: Iterable[PlannedRun], criterion: Criterion) -> Costs:
    found: Costs = {}
    for run in runs:
        if run.state == "done":
            reached = run.result["reached"] or {}
            found.setdefault(run.combination.name, {})[run.seed] = float(reached.get(criterion.name, math.inf))
    return found


def mean(costs: dict[int, float]) -> float:
    return sum(costs.values()) / len(costs)


def behind(first: dict[int, float], other: dict[int, float]) -> bool:
    """Is the second one slower, by more than the margin and two standard errors over seeds?"""
    both = [seed for seed in other if seed in first and math.isfinite(first[seed])]
    if not both or not math.isfinite(mean(other)):
        return bool(both)
    ratios = Spread.of(math.log(other[seed] / first[seed]) for seed in both)
    error = ratios.deviation / math.sqrt(ratios.size) if ratios.size > 1 else 0.0
    return ratios.mean > max(math.log(1 + MARGIN["time"]), _ERRORS * error)


def remaining(costs: Costs) -> list[str]:
    """Those that are not behind the one with the least mean, that one first; none if all missed the target once."""
    order = sorted(costs, key=lambda name: mean(costs[name]))
    if not order or not math.isfinite(mean(costs[order[0]])):
        return []
    return [name for name in order if name == order[0] or not behind(costs[order[0]], costs[name])]


def preferred(costs: Costs) -> list[str]:
    """All of them, best first. Within the margin of the least mean, by the upper end of the interval of a new run."""
    order = sorted(costs, key=lambda name: mean(costs[name]))
    limit = (1 + MARGIN["time"]) * mean(costs[order[0]]) if order else 0.0
    near = [name for name in order if math.isfinite(limit) and mean(costs[name]) <= limit]
    near.sort(key=lambda name: interval(list(costs[name].values()), 0.0)[1])
    return near + [name for name in order if name not in near]


def interval(values: list[float], error: float) -> tuple[float, float]:
    """80 % of new runs lie within, if the logarithms are normal; `error` is added for what the simulation leaves out.

    log v +- t s sqrt(1 + 1 / n), with Student's t for n - 1 degrees of freedom.
    """
    logs = [math.log(value) for value in values]
    centre, n = sum(logs) / len(logs), len(logs)
    if n < 2:
        return math.exp(centre) / (1 + error), math.exp(centre) * (1 + error)
    deviation = math.sqrt(sum((x - centre) ** 2 for x in logs) / (n - 1))
    width = _QUANTILES.get(n - 1, 1.4 if n < 12 else 1.3) * deviation * math.sqrt(1 + 1 / n)
    return math.exp(centre - width) / (1 + error), math.exp(centre + width) * (1 + error)
