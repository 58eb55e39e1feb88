"""Draws docs/pictures/partition-*.png: each partition of the digits, and the distance of its blocks from the data set.

python docs/make_partition_pictures.py
"""

from __future__ import annotations

from pathlib import Path

import equipoise as eq
from equipoise.data import Digits
from equipoise.data.source import Source
from equipoise.partition.study import study
from equipoise.report.partition_figures import class_bars, distance_bars

HERE = Path(__file__).parent
SKEWED = {
    "iid": eq.partition.IID(),
    "sorted": eq.partition.Sorted(),
    "sorted, half shuffled": eq.partition.Sorted(shuffled=0.5, reading="uniform"),
    "shards": eq.partition.Shards(),
    "dirichlet, alpha 1": eq.partition.Dirichlet(alpha=1.0),
    "dirichlet, alpha 0.1": eq.partition.Dirichlet(alpha=0.1),
}
SPEEDS = [1.0, 2.0, 4.0, 8.0]
BALANCED = {
    "stratified": eq.partition.Stratified(SPEEDS),
    "facility, paper's rule": eq.partition.Submodular(SPEEDS, rule="paper"),
    "graph cut, paper's rule": eq.partition.Submodular(SPEEDS, "graph-cut", "paper", lam=1.0),
    "facility": eq.partition.Submodular(SPEEDS),
    "saturated": eq.partition.Submodular(SPEEDS, "saturated"),
    "feature": eq.partition.Submodular(SPEEDS, "feature"),
    "graph cut, size-aware": eq.partition.Submodular(SPEEDS, "graph-cut"),
    "herding": eq.partition.Submodular(SPEEDS, "herding"),
    "herding, polished": eq.partition.Submodular(SPEEDS, "herding", polish=20),
}


def main() -> None:
    view = Source(Digits().load().train).view()
    skewed = {name: study(p, view, 8, splits=1).report for name, p in SKEWED.items()}
    balanced = {name: study(p, view, 4).report for name, p in BALANCED.items()}
    for name, picture in (("partition-skew", class_bars(skewed)), ("partition-distance", distance_bars(balanced))):
        assert picture is not None, "pip install matplotlib"
        (HERE / "pictures" / f"{name}.png").write_bytes(picture)


if __name__ == "__main__":
    main()
