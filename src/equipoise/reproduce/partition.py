"""RCD-SGD: submodular partitions by worker speed."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

import equipoise as eq

from ..core.progress_bar import tracked
from ..data.source import Source
from ..data.view import DatasetView
from ..partition.study import study
from ..simulate.cluster import Link
from .runs import images, mean, time_to

SPEEDS = [1.0, 2.0, 4.0, 8.0]
# 8 workers and 12 links: the first figure of MATCHA, which the paper uses too.
LINKS = [(1, 5), (6, 7), (0, 4), (2, 3), (1, 7), (3, 6), (1, 0), (3, 7), (5, 6), (1, 2), (7, 0), (3, 1)]


def epoch_time(epochs: int, batch: int, **of: Any) -> dict[str, float]:
    """Time of an epoch on workers of speeds 1:2:4:8, with equal and with proportional blocks."""
    data = images(**of)
    cluster = eq.Cluster([100.0 * speed for speed in SPEEDS])
    how: dict[str, Any] = {"workers": 4, "epochs": epochs, "cluster": cluster, "lr": 0.1, "model": "logistic"}
    even = data.train_with(partition=eq.partition.IID(), batch=batch, **how)
    blocks = eq.partition.Submodular(speeds=SPEEDS)
    proportional = data.train_with(partition=blocks, batch=eq.batch.Proportional(batch), **how)
    seconds = [run.result["simulated_seconds"] for run in (even, proportional)]
    return {"epoch time, even / proportional blocks": seconds[0] / seconds[1]}


def likeness(workers: int, splits: int, **of: Any) -> dict[str, float]:
    """Equal speeds: squared MMD between the blocks and their classes, relative to stratified random blocks."""
    view = Source(images(**of).data.train).view()
    kinds: dict[str, dict[str, Any]] = {
        "facility location": {},
        "graph cut": {"objective": "graph-cut", "lam": 1.0},
        "herding (ours)": {"objective": "herding"},
    }
    speeds = [1.0] * workers
    distances = {
        name: _distance(view, speeds, splits, rule="paper" if "ours" not in name else "fill", **k)
        for name, k in kinds.items()
    }
    return {f"squared MMD / random, {name}": value for name, (value, _) in distances.items()}


def unequal(examples: int, splits: int) -> dict[str, float]:
    """Speeds 1:2:4:8 and classes of three clusters of different sizes: the rule of the paper and the fill rule."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), examples // 4)
    part = rng.choice(3, len(y), p=[0.7, 0.25, 0.05])
    centres = 4.0 * rng.standard_normal((4, 3, 8))
    x = (centres[y, part] + rng.standard_normal((len(y), 8))).astype(np.float32)
    view = DatasetView(len(y), y, (torch.from_numpy(x), torch.from_numpy(y)))
    rows: dict[str, dict[str, Any]] = {
        "facility location, the paper's rule": {"rule": "paper"},
        "graph cut, the paper's rule": {"rule": "paper", "objective": "graph-cut", "lam": 1.0},
        "facility location, fill rule (ours)": {"rule": "fill"},
        "herding, fill rule (ours)": {"rule": "fill", "objective": "herding"},
    }
    quantities = {}
    for name, options in rows.items():
        average, largest = _distance(view, SPEEDS, splits, **options)
        quantities[f"squared MMD / random, {name}"] = average
        quantities[f"the same, largest block, {name}"] = largest
    return quantities


def _distance(view: DatasetView, speeds: list[float], splits: int, **options: Any) -> tuple[float, float]:
    """Squared MMD relative to random blocks: mean over blocks, and the largest block."""
    result = study(
        eq.partition.Submodular(speeds=speeds, **options), view, len(speeds), splits=splits, features="inputs"
    )
    distance = result.report["mmd2"]
    ratios = [a / b for a, b in zip(distance["block"], distance["random"], strict=True)]
    return mean(ratios), ratios[int(np.argmax(result.report["sizes"]))]


def saved(epochs: int, seeds: int, model: str, **of: Any) -> dict[str, float]:
    """D-PSGD on 8 equal workers: time to a training loss, separated into fewer rounds and the partition.

    A round takes longer than a step, so halving the number of rounds alone can save more than a quarter.
    """
    data = images(**of)
    cluster = eq.Cluster([1000.0] * 8, Link(100e6, 1e-2))
    random = eq.partition.IID()
    submodular, herding = eq.partition.Submodular(rule="paper"), eq.partition.Submodular(objective="herding")
    cases = {
        ("random", 1): random,
        ("random", 2): random,
        ("random", 4): random,
        ("submodular", 2): submodular,
        ("herding", 2): herding,
    }
    curves: dict[tuple[str, int], list[list[tuple[float, float]]]] = {case: [] for case in cases}
    for seed, (case, partition) in tracked("runs", [*itertools.product(range(seeds), cases.items())]):
        sync = eq.sync.DPSGD(eq.topology.Edges(links=LINKS), combine="before")
        how: dict[str, Any] = {"workers": 8, "epochs": epochs, "batch": 16, "lr": 0.1, "model": model, "seed": seed}
        run = data.curve("simulated_seconds", partition=partition, sync=sync, period=case[1], cluster=cluster, **how)
        curves[case].append(run)
    target = max(curve[-1][1] for of_case in curves.values() for curve in of_case)
    times = {case: mean(time_to(curve, target) for curve in of_case) for case, of_case in curves.items()}

    def saved(case: tuple[str, int], base: tuple[str, int]) -> float:
        return 100 * (1 - times[case] / times[base])

    return {
        "time saved by the partition alone (F = 2 both), %": saved(("submodular", 2), ("random", 2)),
        "time saved by a herding partition alone (F = 2 both), %": saved(("herding", 2), ("random", 2)),
        "time saved by fewer rounds alone (F = 2, random both), %": saved(("random", 2), ("random", 1)),
        "time saved by still fewer rounds alone (F = 4, random both), %": saved(("random", 4), ("random", 1)),
        "time saved by both, as the paper compares, %": saved(("submodular", 2), ("random", 1)),
    }
