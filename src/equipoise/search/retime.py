"""What would change the answer: the same steps on other links, or on equal workers.

The steps that a candidate needs do not depend on the links, the seconds of a step do. So as many steps on the changed
cluster, without evaluations, tell its time to the target. Blocks and batches that follow speeds follow the new ones.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, NamedTuple

from ..simulate.cluster import Cluster, Link
from ..simulate.units import bits
from .halving import Search, Trial
from .space import followed

_COMPARED = 4  # candidates, besides those of other syncs


class Variant(NamedTuple):
    """A changed cluster in words, and the seconds of each candidate there, fastest first."""

    words: str
    seconds: list[tuple[str, float]]


def variants(cluster: Cluster) -> list[tuple[str, Cluster]]:
    """Links ten times as fast and as slow, and equal workers where they differ."""
    found = [(_words(cluster, factor), _scaled(cluster, factor)) for factor in (10.0, 0.1)] if _limited(cluster) else []
    if max(cluster.rates) > 1.1 * min(cluster.rates):
        mean = sum(cluster.rates) / cluster.size
        found.append(("with equal workers", dataclasses.replace(cluster, rates=[mean] * cluster.size)))
    return found


def _limited(cluster: Cluster) -> bool:
    links = [cluster.link, *cluster.between.values(), *cluster.across.values()]
    return any(math.isfinite(link.bandwidth) for link in links)


def _words(cluster: Cluster, factor: float) -> str:
    if cluster.between or cluster.across:
        return f"with links ten times as {'fast' if factor > 1 else 'slow'}"
    return f"with links of {bits(factor * cluster.link.bandwidth)}"


def _scaled(cluster: Cluster, factor: float) -> Cluster:
    def faster(link: Link) -> Link:
        return dataclasses.replace(link, bandwidth=factor * link.bandwidth)

    return dataclasses.replace(
        cluster,
        link=faster(cluster.link),
        between={pair: faster(link) for pair, link in cluster.between.items()},
        across={pair: faster(link) for pair, link in cluster.across.items()},
    )


def retimed(search: Search) -> list[Variant]:
    """The best candidates on each changed cluster."""
    trials = _representatives(search)
    if len(trials) < 2:
        return []
    found = []
    for number, (words, cluster) in enumerate(variants(search.cluster)):
        path = search.out / "clusters" / f"{number}.toml"
        path.parent.mkdir(exist_ok=True)
        cluster.save(path)
        seconds = _seconds(search, trials, cluster, path, number)
        if len(seconds) > 1:
            found.append(Variant(words, sorted(seconds.items(), key=lambda item: item[1])))
    return found


def _representatives(search: Search) -> list[Trial]:
    """The best trials that differ in more than a learning rate, and the best one of every sync.

    Those that were cut before the target first go on until they reach it.
    """
    best: dict[Any, Trial] = {}
    for trial in search.ranking():
        known = {other.candidate.sync for other in best.values()}
        if len(best) < _COMPARED or trial.candidate.sync not in known:
            best.setdefault(trial.candidate.structure, trial)
    winner = search.ranking()[0]
    missing = [trial for trial in best.values() if not trial.reached]
    limit = {"samples": 4 * int(winner.run.result["samples"])}
    runs = [search.planned(trial.candidate, 1e9, 0, "to-target", limit) for trial in missing]
    search.run(runs, over=lambda: not search.left())
    for trial, run in zip(missing, runs, strict=True):
        if run.state == "done" and run.result.get("reached") is not None:
            best[trial.candidate.structure] = Trial(trial.candidate, run, search.goal.score(run.result, run.folder))
    return [trial for trial in best.values() if trial.reached]


def _seconds(search: Search, trials: list[Trial], cluster: Cluster, path: Path, number: int) -> dict[str, float]:
    """Seconds to the target by candidate."""
    runs = []
    for trial in trials:
        limit = {"steps": trial.run.result["reached"]["step"], "cluster": str(path), "evaluate_every": 1e6}
        there = followed(trial.candidate, search.recipe, cluster)
        runs.append(search.planned(there, 1e9, 0, f"cluster-{number}", limit))
    search.run(runs, over=lambda: not search.left())
    return {
        trial.candidate.name: float(run.result["simulated_seconds"])
        for trial, run in zip(trials, runs, strict=True)
        if run.state == "done"
    }


def sentences(found: list[Variant], winner: str) -> list[str]:
    """Which changes would change the answer."""
    texts, same = [], []
    for variant in found:
        first, least = variant.seconds[0]
        own = dict(variant.seconds).get(winner)
        if own is None:
            continue
        if first == winner or own < 1.1 * least:
            same.append(variant.words)
        else:
            texts.append(
                f"{variant.words[0].upper()}{variant.words[1:]} {first} wins: {least:.2g} s against {own:.2g} s."
            )
    if same:
        texts.append(f"It also wins {' and '.join(same)}.")
    return texts
