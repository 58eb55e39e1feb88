"""DeTAG's experiments at a small scale: LeNet on CIFAR-10, ring, data sorted by label and X % shuffled, slack graphs.

    python detag_cifar10.py --data-dir DIR                        # minutes on 2 cores
    python detag_cifar10.py --data-dir DIR --workers 16 --kappas 1
    python detag_cifar10.py --data-dir DIR --examples 50000 --epochs 60 --batch 32    # the full scale

Every method uses the best learning rate of a grid, by the final training loss of the mean model. Curves are drawn
against steps, rounds and bytes; the table shows where DeTAG wins and where it does not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import NonFinite
from equipoise.data import CIFAR10
from equipoise.models import LeNet
from equipoise.observe.events import read_events

SYNCS = {
    "all-reduce": lambda graph: eq.sync.AllReduce(),
    "D-PSGD": lambda graph: eq.sync.DPSGD(graph),
    "D2": lambda graph: eq.sync.D2(graph),
    "DSGT": lambda graph: eq.sync.DSGT(graph),
    "DeTAG": lambda graph: eq.sync.DeTAG(graph),
}
STEPS = {"DeTAG": (0.05, 0.1, 0.2, 0.4)}  # its gradient is the mean over a phase, so its best step is larger
DEFAULT_STEPS = (0.02, 0.05, 0.1, 0.2)


def one(job: tuple[str, float, float, float, argparse.Namespace]) -> dict[str, Any]:
    """One run; the curve of the mean model's training loss."""
    name, lr, shuffled, kappa, args = job
    torch.set_num_threads(1)
    data = load(args)
    graph = eq.topology.Ring(slack=kappa)
    with tempfile.TemporaryDirectory() as folder:
        run = None
        with contextlib.suppress(NonFinite):
            run = eq.train(
                lambda: build(data),
                nn.CrossEntropyLoss(),
                data.train,
                test=(data.train.x[:: args.stride], data.train.y[:: args.stride]),
                optimizer=lambda p: torch.optim.SGD(p, lr=lr),
                workers=args.workers,
                epochs=args.epochs,
                batch=args.batch,
                partition=eq.partition.Sorted(shuffled=shuffled),
                sync=SYNCS[name](graph),
                seed=args.seed,
                out=Path(folder) / "run",
                log_every=1000,
                checkpoint_every=10**9,
            )
        curve = [
            {
                **{k: e[k] for k in ("step", "rounds", "bytes")},
                "loss": e["models"]["mean"]["loss"],
                "consensus": e["health"]["consensus"],
            }
            for e in read_events(Path(folder) / "run")
            if e["event"] == "evaluate"
        ]
    loss = curve[-1]["loss"] if run is not None else float("inf")
    return {"method": name, "lr": lr, "shuffled": shuffled, "kappa": kappa, "loss": loss, "curve": curve}


def load(args: argparse.Namespace) -> Any:
    if "data" not in CACHE:
        CACHE["data"] = CIFAR10(dir=args.data_dir, limit=args.examples, test_limit=100).load()
    return CACHE["data"]


CACHE: dict[str, Any] = {}


def build(data: Any) -> nn.Module:
    torch.manual_seed(0)
    return LeNet().build(data)


def best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return min(rows, key=lambda r: r["loss"])


def draw(title: str, cells: dict[float, list[dict[str, Any]]], label: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, len(cells), figsize=(4 * len(cells), 9), squeeze=False, sharey=True)
    for column, (value, rows) in enumerate(cells.items()):
        for row, axis in enumerate(("step", "rounds", "bytes")):
            plot = axes[row][column]
            for r in rows:
                plot.plot(
                    [p[axis] for p in r["curve"]],
                    [p["loss"] for p in r["curve"]],
                    label=f"{r['method']} (lr {r['lr']:g})",
                )
            plot.set_xlabel({"step": "steps", "rounds": "rounds", "bytes": "bytes sent by worker 0"}[axis])
            plot.grid(alpha=0.3)
            if row == 0:
                plot.set_title(f"{label} {value:g}")
            if column == 0:
                plot.set_ylabel("training loss, mean model")
        axes[0][column].legend(fontsize=7)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def table(label: str, cells: dict[float, list[dict[str, Any]]]) -> None:
    print(f"\nTraining loss of the mean model at the end, each method at its best step (in brackets); {label}")
    print(f"  {'':<12}" + "".join(f"{label} {v:<12g}" for v in cells))
    for name in SYNCS:
        entries = [next((r for r in rows if r["method"] == name), None) for rows in cells.values()]
        print(
            f"  {name:<12}"
            + "".join(f"{e['loss']:.4f} ({e['lr']:g})".ljust(len(label) + 13) if e else "-" for e in entries)
        )
    for value, rows in cells.items():
        others = [r for r in rows if r["method"] not in ("DeTAG", "all-reduce")]
        detag = next(r for r in rows if r["method"] == "DeTAG")
        rival = best(others)
        verdict = "wins" if detag["loss"] < rival["loss"] else f"loses to {rival['method']}"
        print(f"  {label} {value:g}: DeTAG {verdict} ({detag['loss']:.4f} against {rival['loss']:.4f}) at equal steps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--examples", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--stride", type=int, default=4, help="evaluate on every so many-th training example")
    parser.add_argument("--shuffled", default="0,0.25,0.5,1")
    parser.add_argument("--kappas", default="1,0.1,0.05,0.01")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="detag-cifar10")
    parser.add_argument("--json", metavar="FILE", help="also write {ratio name: value}")
    args = parser.parse_args()
    shuffles = [float(s) for s in args.shuffled.split(",")]
    kappas = [float(k) for k in args.kappas.split(",")]
    load(args)
    settings = [(s, 1.0) for s in shuffles] + [(0.0, k) for k in kappas if k != 1.0]
    jobs = [
        (name, lr, shuffled, kappa, args)
        for shuffled, kappa in settings
        for name in SYNCS
        for lr in STEPS.get(name, DEFAULT_STEPS)
        if not (name == "all-reduce" and kappa != 1.0)
    ]
    print(
        f"LeNet on {args.examples} examples of CIFAR-10, {args.workers} workers on a ring, batch {args.batch}, "
        f"{args.epochs} epochs, plain SGD, {len(jobs)} runs"
    )
    started = time.time()
    rows = []
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        for done, row in enumerate(pool.imap_unordered(one, jobs), 1):
            rows.append(row)
            print(
                f"  {done}/{len(jobs)} {row['method']:<10} lr {row['lr']:g} shuffled {row['shuffled']:g} "
                f"kappa {row['kappa']:g} loss {row['loss']:.4f}",
                flush=True,
            )
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"results-{args.workers}.json").write_text(json.dumps(rows))

    def cells(key: str, values: list[float], **fixed: float) -> dict[float, list[dict[str, Any]]]:
        return {
            v: [
                best(matching)
                for name in SYNCS
                if (
                    matching := [
                        r
                        for r in rows
                        if r["method"] == name and r[key] == v and all(r[k] == w for k, w in fixed.items())
                    ]
                )
            ]
            for v in values
        }

    by_shuffle = cells("shuffled", shuffles, kappa=1.0)
    table("shuffled", by_shuffle)
    draw(f"{args.workers} workers on a ring", by_shuffle, "shuffled", out / f"shuffled-{args.workers}.png")
    if len(kappas) > 1 and 0.0 in shuffles:
        by_kappa = cells("kappa", kappas, shuffled=0.0)
        table("kappa", by_kappa)
        draw(f"{args.workers} workers, slack ring, sorted data", by_kappa, "kappa", out / f"kappa-{args.workers}.png")
    print(f"\n{time.time() - started:.0f} s; results and plots in {out}")
    if args.json:
        ratios = {
            f"DeTAG / best of D-PSGD, D2, DSGT, shuffled {v:g}": next(r for r in c if r["method"] == "DeTAG")["loss"]
            / best([r for r in c if r["method"] in ("D-PSGD", "D2", "DSGT")])["loss"]
            for v, c in by_shuffle.items()
        }
        Path(args.json).write_text(json.dumps(ratios, indent=1) + "\n")


if __name__ == "__main__":
    main()
