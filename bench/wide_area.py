"""Each family of methods on 8 to 1,024 virtual workers of a described wide-area cluster.

Four sites with an equal number of workers each, ranks in order of the sites. Links inside a site have 10 Mbit and 0.1
ms; each pair of sites shares one line of 1 Mbit and 20 ms. The model has 2,388 parameters (9.6 kB), so these links
correspond to 10 Gbit and 1 Gbit for a model of 9.6 MB. Workers differ in speed by up to 2 and vary by 10 % from step
to step. Every worker takes the same number of steps of 8 examples, from a common problem (16 features, 20 classes,
labels of a random network).

    python wide_area.py --steps 64 --json wide_area.json --plot ../docs/pictures/wide_area.svg
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from scale import small
from torch import nn

import equipoise as eq

SITES = ("a", "b", "c", "d")
ACROSS = [(one, two) for i, one in enumerate(SITES) for two in SITES[i + 1 :]]
METHODS: dict[str, tuple[Callable[[], eq.sync.Sync], int]] = {
    "all-reduce": (eq.sync.AllReduce, 1),
    "periodic-average, period 8": (eq.sync.PeriodicAverage, 8),
    "diloco, period 16": (eq.sync.DiLoCo, 16),
    "easgd, period 8": (eq.sync.EASGD, 8),
    "lgrawa, period 8": (eq.sync.LGRAWA, 8),
    "d-psgd, ring": (lambda: eq.sync.DPSGD(eq.topology.Ring()), 1),
    "d-psgd, one-peer": (lambda: eq.sync.DPSGD(eq.topology.OnePeer()), 1),
    "d-psgd, ring, period 8": (lambda: eq.sync.DPSGD(eq.topology.Ring()), 8),
    "detag, frozen, hypercube": (lambda: eq.sync.DeTAG(eq.topology.Hypercube(lazy=True), frozen=True), 1),
}


def cluster_of(workers: int) -> eq.Cluster:
    return eq.Cluster(
        [400.0 * (1 + (k * 7 % 8) / 7) for k in range(workers)],
        eq.Link("10 Mbit", "0.1 ms"),
        sites=[SITES[k * len(SITES) // workers] for k in range(workers)],
        across={pair: eq.Link("1 Mbit", "20 ms", shared=True) for pair in ACROSS},
        jitter=0.1,
    )


def data(examples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels of one teacher for all; another number of examples gives other ones."""
    teacher = torch.randn(16, 20, generator=torch.Generator().manual_seed(1))
    inputs = torch.randn(examples, 16, generator=torch.Generator().manual_seed(examples))
    return inputs, (inputs @ teacher).argmax(1)


def study(name: str, workers: int, steps: int) -> dict[str, Any]:
    sync, period = METHODS[name]
    started = time.perf_counter()
    run = eq.train(
        small,
        nn.CrossEntropyLoss(),
        data(8 * 64 * workers),
        test=data(2048),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.2),
        workers=workers,
        steps=steps,
        batch=8,
        sync=sync(),
        period=period,
        cluster=cluster_of(workers),
        log_every=steps,
    )
    rows, result = run.result["workers"], run.result
    spent = {kind: sum(row[kind] for row in rows) / workers for kind in ("compute", "wait", "communicate")}
    return {
        "method": name,
        "workers": workers,
        "simulated_seconds": result["simulated_seconds"],
        "bytes_per_worker": result["bytes"] / workers,
        "loss": result["models"]["mean"]["loss"],
        "consensus": result["consensus"],
        **spent,
        "real_seconds": time.perf_counter() - started,
    }


def plot(rows: list[dict[str, Any]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == name]
        left.plot([r["workers"] for r in mine], [r["simulated_seconds"] for r in mine], marker="o", ms=3, label=name)
        right.plot([r["workers"] for r in mine], [r["loss"] for r in mine], marker="o", ms=3)
    left.set(xscale="log", yscale="log", xlabel="workers", ylabel="simulated seconds")
    right.set(xscale="log", xlabel="workers", ylabel="loss of the mean model")
    left.legend(fontsize=7)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="8,64,256,1024")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE", help="a picture of the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(
        f"{'':<28}{'workers':>8}{'sim. s':>10}{'compute':>9}{'wait':>9}{'comm.':>9}{'MB each':>9}"
        f"{'loss':>8}{'real s':>8}"
    )
    for workers in map(int, args.sizes.split(",")):
        for name in METHODS:
            row = study(name, workers, args.steps)
            rows.append(row)
            print(
                f"{name:<28}{workers:>8}{row['simulated_seconds']:10.2f}{row['compute']:9.2f}{row['wait']:9.2f}"
                f"{row['communicate']:9.2f}{row['bytes_per_worker'] / 1e6:9.2f}{row['loss']:8.3f}"
                f"{row['real_seconds']:8.1f}",
                flush=True,
            )
            if args.json:
                Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
