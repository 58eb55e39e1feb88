"""RCD-SGD's experiment with its missing ablations: how much of the gain comes from the partition?

    python partition_training.py --data-dir DIR                              # LeNet, 4,000 examples: minutes on 2 cores
    python partition_training.py --data-dir DIR --examples 50000 --epochs 60 --model resnet --seeds 3   # the full scale
    python partition_training.py                                             # the bundled digits: a minute

Equal workers: D-PSGD and MATCHA on 8 workers, a round every F = 1 and 2 steps (more with `--periods`), five
partitions. Unequal workers: two each of the speeds 1:1:2:4 and 1:2:4:8, D-PSGD weighted by size and uniformly; `even`
is the random partition into equal blocks that ignores the speeds. Time is that of a described cluster (`--rate`,
`--bandwidth`, `--latency`); `--real 1` adds runs in slowed-down processes (four, one at each speed, averaging every F
steps), and `--simulated 0` leaves out the others. The result is the time until the training loss of the mean model
reaches `--target`; the default is the final loss of the worst run at these speeds, so that all reach it. `--plot
FILE.png` draws the curves.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import report
from torch import nn

import equipoise as eq
from equipoise.config import registry
from equipoise.data.source import Source
from equipoise.observe.events import read_events
from equipoise.partition.from_file import write_blocks
from equipoise.simulate.cluster import Link

# 8 workers and 12 links in five matchings, one link the only way to worker 4, as in MATCHA's first figure.
LINKS = [(1, 5), (6, 7), (0, 4), (2, 3), (1, 7), (3, 6), (1, 0), (3, 7), (5, 6), (1, 2), (7, 0), (3, 1)]
PARTITIONS = {
    "random": lambda speeds: eq.partition.IID(speeds=speeds),
    "stratified": lambda speeds: eq.partition.Stratified(speeds=speeds),
    "facility": lambda speeds: eq.partition.Submodular(speeds=speeds),
    "facility, paper's rule": lambda speeds: eq.partition.Submodular(speeds=speeds, rule="paper"),
    "graph cut": lambda speeds: eq.partition.Submodular(speeds=speeds, objective="graph-cut", lam=1.0, rule="paper"),
    "herding": lambda speeds: eq.partition.Submodular(speeds=speeds, objective="herding"),
}
EQUAL = ("random", "stratified", "facility", "graph cut", "herding")
UNEQUAL = ("even", "random", "stratified", "facility, paper's rule", "facility", "herding")
UNIFORM = ("random", "facility, paper's rule", "herding")  # enough to tell what the weights do
REAL = ("even", "random", "facility")
CACHE: dict[str, Any] = {}


def load(args: argparse.Namespace) -> Any:
    if "data" not in CACHE:
        if args.data_dir:
            cifar = registry.get("data", "cifar10")
            CACHE["data"] = cifar(dir=args.data_dir, limit=args.examples, test_limit=args.tested).load()
        else:
            CACHE["data"] = registry.get("data", "digits")().load()
    return CACHE["data"]


def build(args: argparse.Namespace, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    options = {"width": args.width} if args.model == "resnet" else {}
    return registry.get("model", args.model)(**options).build(load(args))


def sync_of(name: str) -> eq.sync.Sync:
    if name == "D-PSGD":
        return eq.sync.DPSGD(eq.topology.Edges(links=LINKS), combine="before")
    if name.startswith("D-PSGD "):
        return eq.sync.DPSGD(eq.topology.Edges(links=LINKS), combine="before", weights=name.split()[-1])
    if name == "MATCHA":
        return eq.sync.MATCHA(eq.topology.Edges(links=LINKS), budget=0.5)
    return eq.sync.PeriodicAverage(weights=name.split()[-1])


def one(case: dict[str, Any]) -> dict[str, Any]:
    """One run: the loss of the mean model on training data against time, and its accuracy on test data."""
    torch.set_num_threads(1)
    args, speeds = case["args"], case["speeds"]
    data, workers = load(args), len(case["speeds"])
    options: dict[str, Any] = {"virtual": False, "slow": [max(speeds) / speed for speed in speeds]}
    if not case["real"]:
        link = Link(args.bandwidth * 1e6, args.latency / 1e3)
        options = {"cluster": eq.Cluster([args.rate * speed for speed in speeds], link)}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = eq.train(
            lambda: build(args, case["seed"]),
            nn.CrossEntropyLoss(),
            data.train,
            test=(data.train.x[:: args.stride], data.train.y[:: args.stride]),
            optimizer=lambda p: torch.optim.SGD(p, lr=args.lr),
            workers=workers,
            epochs=args.epochs,
            batch=eq.batch.Proportional(args.batch),
            partition=eq.partition.FromFile(case["file"]),
            sync=sync_of(case["sync"]),
            period=case["period"],
            seed=case["seed"],
            out=Path(folder) / "run",
            log_every=10**6,
            checkpoint_every=10**9,
            **options,
        )
        clock = "seconds" if case["real"] else "simulated_seconds"
        events = [e for e in read_events(Path(folder) / "run") if e["event"] == "evaluate"]
        curve = [(e[clock], e["models"]["mean"]["loss"]) for e in events]
    run.model.eval()
    with torch.no_grad():
        guesses = torch.cat([run.model(part).argmax(1) for part in data.test.x.split(512)])
    accuracy = (guesses == data.test.y).float().mean().item()
    kept = {k: case[k] for k in ("partition", "sync", "period", "ratio", "seed", "real")}
    return kept | {"curve": curve, "accuracy": accuracy, "spent": time.perf_counter() - started}


def time_to(curve: list[tuple[float, float]], target: float) -> float:
    """When the loss first reaches the target, on a straight line between evaluations; inf if it never does."""
    before = None
    for seconds, loss in curve:
        if loss <= target:
            if before is None:
                return seconds
            part = (before[1] - target) / (before[1] - loss)
            return before[0] + part * (seconds - before[0])
        before = (seconds, loss)
    return float("inf")


def divided(args: argparse.Namespace, name: str, speeds: list[float], seed: int, folder: Path) -> str:
    """The partition file of a case, made once. Random ones are drawn by the seed of the run."""
    drawn = name in ("random", "stratified", "even")
    path = folder / f"{name}-{'-'.join(f'{s:g}' for s in speeds)}-{seed if drawn else 0}.json".replace(" ", "_")
    if not path.exists():
        even = [1.0] * len(speeds)
        method = PARTITIONS["random" if name == "even" else name](even if name == "even" else speeds)
        started = time.perf_counter()
        blocks = method.blocks(Source(load(args).train).view(), len(speeds), seed)
        write_blocks(path, blocks)
        if seed == 0 or not drawn:
            sizes = [len(block) for block in blocks]
            spent = time.perf_counter() - started
            print(f"  {name:<24} speeds {_ratio(speeds)}: sizes {sizes}, {spent:.2f} s", flush=True)
    return str(path)


def _ratio(speeds: list[float]) -> str:
    return ":".join(f"{speed:g}" for speed in speeds)


def cases(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    selected = []
    periods = [int(p) for p in args.periods.split(",")]
    rarely = [int(p) for p in (args.unequal_periods or args.periods).split(",")]
    ratios: list[tuple] = []
    if args.simulated:
        ratios.append(("equal", [1.0] * 8, EQUAL, ("D-PSGD", "MATCHA"), periods, False))
    for text in filter(None, args.ratios.split(",")):
        speeds = [float(part) for part in text.split(":")]
        if args.simulated:
            ratios.append((text, speeds * 2, UNEQUAL, ("D-PSGD by size",), rarely, False))
            ratios.append((text, speeds * 2, UNIFORM, ("D-PSGD uniform",), rarely, False))
        if args.real:
            ratios.append((text, speeds, REAL, ("average by size",), rarely, True))
    for seed in range(args.seeds):  # outermost, so that a run that is cut short has whole seeds
        for ratio, speeds, partitions, syncs, every, real in ratios:
            for name in partitions:
                file = divided(args, name, speeds, seed, folder)
                for sync in syncs:
                    for period in every:
                        kept = {"partition": name, "sync": sync, "period": period, "ratio": ratio, "seed": seed}
                        selected.append(kept | {"real": real, "speeds": speeds, "file": file, "args": args})
    return selected


def groups(rows: list[dict[str, Any]]) -> dict[tuple, list[dict[str, Any]]]:
    table: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        table.setdefault((row["real"], row["ratio"], row["sync"], row["period"], row["partition"]), []).append(row)
    return table


def tell(rows: list[dict[str, Any]], target: float | None) -> dict[tuple, float]:
    """A line per case: loss and accuracy at the end, time to the target; the times, by case."""
    times, aims = {}, {}
    for row in rows:
        group, last = (row["real"], row["ratio"]), row["curve"][-1][1]
        aims[group] = target if target is not None else max(last, aims.get(group, last))
    head = f"{'time':<10}{'speeds':<10}{'sync':<17}{'F':>3}  {'partition':<24}{'last loss':>10}{'accuracy':>10}"
    print(f"\n{head}{'seconds':>10}{'target':>10}{'reached':>10}")
    for key, selected in groups(rows).items():
        aim = aims[key[:2]]
        times[key] = statistics.mean(time_to(row["curve"], aim) for row in selected)
        last = [row["curve"][-1] for row in selected]
        print(
            f"{'real' if key[0] else 'simulated':<10}{key[1]:<10}{key[2]:<17}{key[3]:>3}  {key[4]:<24}"
            f"{statistics.mean(loss for _, loss in last):>10.4f}"
            f"{statistics.mean(r['accuracy'] for r in selected):>10.4f}"
            f"{statistics.mean(s for s, _ in last):>10.2f}{aim:>10.4f}{times[key]:>10.2f}"
        )
    return times


def attribution(times: dict[tuple, float], periods: list[int]) -> list[tuple[str, float, float | None]]:
    """The paper compares random at F = 1 with its partition at F = 2; random at F = 2 tells the two apart."""
    rows: list[tuple[str, float, float | None]] = []
    if not {1, 2} <= set(periods):
        return rows
    for sync in ("D-PSGD", "MATCHA"):
        base, rare = (times.get((False, "equal", sync, F, "random")) for F in (1, 2))
        if base and rare and np.isfinite([base, rare]).all():
            rows.append((f"{sync}: random F=2 / random F=1, time (fewer rounds alone)", rare / base, None))
        for name in EQUAL[1:]:
            own = times.get((False, "equal", sync, 2, name))
            if base and rare and own and np.isfinite([base, rare, own]).all():
                rows.append((f"{sync}: {name} F=2 / random F=1, time (the paper's comparison)", own / base, None))
                rows.append((f"{sync}: {name} F=2 / random F=2, time (the partition alone)", own / rare, None))
    return rows


def unequal(times: dict[tuple, float]) -> list[tuple[str, float, float | None]]:
    """Sizes in proportion to speed against equal blocks, and then what the choice of examples adds."""
    rows: list[tuple[str, float, float | None]] = []
    for key, own in times.items():
        real, ratio, sync, period, name = key
        even, random = times.get((*key[:4], "even")), times.get((*key[:4], "random"))
        if (
            ratio == "equal"
            or name == "even"
            or even is None
            or random is None
            or not np.isfinite([even, random]).all()
        ):
            continue
        where = f"{'real' if real else 'simulated'} {ratio}, {sync}, F={period}"
        if name == "random":
            rows.append((f"{where}: random by speed / even blocks", own / even, None))
        elif np.isfinite(own):
            rows.append((f"{where}: {name} / random, both by speed", own / random, None))
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels: dict[tuple, list[tuple]] = {}
    for key in groups(rows):
        panels.setdefault(key[:3], []).append(key)
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.4 * columns, 3.6 * lines), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (panel, keys) in zip(axes.flat, panels.items(), strict=False):
        for key in keys:
            curve = np.mean([row["curve"] for row in groups(rows)[key]], axis=0)
            style = "-" if key[3] == 1 else "--"
            colour = f"C{list(dict.fromkeys(k[4] for k in keys)).index(key[4])}"
            axis.semilogy(curve[:, 0], curve[:, 1], style, color=colour, label=f"{key[4]}, F = {key[3]}")
        axis.set(title=f"{panel[2]}, speeds {panel[1]}", xlabel=f"{'real' if panel[0] else 'simulated'} seconds")
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=6)
    for axis in axes[:, 0]:
        axis.set_ylabel("training loss, mean model")
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="", help="folder with cifar10-train.npz; the bundled digits if left out")
    parser.add_argument("--model", default="", help="lenet (on CIFAR-10), mlp (on digits), or resnet")
    parser.add_argument("--width", type=int, default=16, help="of resnet")
    parser.add_argument("--examples", type=int, default=4000)
    parser.add_argument("--tested", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16, help="examples per worker and step, on average")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--periods", default="1,2")
    parser.add_argument("--unequal-periods", default="", help="for unequal speeds; those of --periods if left out")
    parser.add_argument("--ratios", default="1:1:2:4,1:2:4:8", help="speeds of unequal workers; empty for none")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1000.0, help="examples per second of a worker of speed 1")
    parser.add_argument("--bandwidth", type=float, default=100.0, help="Mbit/s of every link")
    parser.add_argument("--latency", type=float, default=1.0, help="ms of every link")
    parser.add_argument("--target", type=float, default=None)
    parser.add_argument("--stride", type=int, default=4, help="evaluate on every so many-th training example")
    parser.add_argument("--simulated", type=int, default=1, help="0: only the runs in processes")
    parser.add_argument("--real", type=int, default=0, help="1: also in processes with declared slow-downs")
    parser.add_argument("--jobs", type=int, default=2, help="simulated runs at the same time")
    parser.add_argument("--out", default="partition-training")
    parser.add_argument("--plot", metavar="FILE", help="the curves; by default curves.png in the folder of --out")
    parser.add_argument("--json", metavar="FILE", help="also write {ratio name: value}")
    args = parser.parse_args()
    args.model = args.model or ("lenet" if args.data_dir else "mlp")
    load(args)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    started, rows = time.time(), []
    with tempfile.TemporaryDirectory() as folder:
        todo = cases(args, Path(folder))
        print(f"{len(todo)} runs of {args.epochs} epochs on {len(load(args).train):,} examples", flush=True)
        with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
            for row in pool.imap_unordered(one, [case for case in todo if not case["real"]]):
                rows.append(row)
                (out / "results.json").write_text(json.dumps(rows))
                print(".", end="", flush=True)
        for case in filter(lambda case: case["real"], todo):  # alone on the machine: their time is real
            rows.append(one(case))
            (out / "results.json").write_text(json.dumps(rows))
    order = {(c["real"], c["ratio"], c["sync"], c["period"], c["partition"], c["seed"]): i for i, c in enumerate(todo)}
    rows.sort(key=lambda r: order[r["real"], r["ratio"], r["sync"], r["period"], r["partition"], r["seed"]])
    (out / "results.json").write_text(json.dumps(rows))
    times = tell(rows, args.target)
    draw(rows, Path(args.plot) if args.plot else out / "curves.png")
    periods = [int(p) for p in args.periods.split(",")]
    report("Which part of the gain is the partition?", attribution(times, periods) + unequal(times), args.json)
    print(f"\n{time.time() - started:.0f} s; results and plot in {out}")


if __name__ == "__main__":
    main()
