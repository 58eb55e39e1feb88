"""Which choice is fastest where? Time to a target in five situations: the tables of docs/choosing.md.

    python choosing.py                 # bundled digits, 8 workers: about a quarter of an hour on 2 cores
    python choosing.py --seeds 10 --workers 16
    python choosing.py --situations rack,slow --markdown FILE --json FILE

A situation is a described cluster and a partition of the data. Every choice has its own learning rate (`--rates`),
the one with the shortest time on a tuning seed that is not reported; if it has a period, the better of two. The
result is the simulated time until the mean (or centre) model reaches the target test accuracy.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import WorkerError
from equipoise.data import Digits
from equipoise.models import MLP
from equipoise.simulate.cluster import Link


class Situation(NamedTuple):
    words: str
    speeds: tuple[float, ...]  # repeated over the workers
    mbit: float
    ms: float
    shuffled: float  # the part of the data that is not sorted by label

    def cluster(self, workers: int) -> eq.Cluster:
        rates = [200.0 * self.speeds[i * len(self.speeds) // workers] for i in range(workers)]
        return eq.Cluster(rates, Link(self.mbit * 1e6, self.ms / 1e3))

    def partition(self) -> Any:
        return eq.partition.IID() if self.shuffled == 1 else eq.partition.Sorted(shuffled=self.shuffled)


SITUATIONS = {
    "rack": Situation("equal workers, fast links, data spread evenly", (1,), 1000, 0.1, 1),
    "slow": Situation("equal workers, slow links, data spread evenly", (1,), 2, 20, 1),
    "unequal": Situation("workers at 1:1:2:4, fast links, data spread evenly", (1, 1, 2, 4), 1000, 0.1, 1),
    "sorted": Situation("equal workers, middling links, data sorted by label", (1,), 20, 2, 0),
    "all": Situation("workers at 1:1:2:4, slow links, half the data sorted by label", (1, 1, 2, 4), 2, 20, 0.5),
}
Make = Callable[[Situation], dict[str, Any]]


def fair(situation: Situation) -> dict[str, Any]:
    """Blocks and batches by speed; only for data that may be moved."""
    return {
        "partition": eq.partition.Submodular(speeds="measured", objective="herding"),
        "batch": eq.batch.Proportional(16),
    }


def periodic(sync: Callable[[], Any], *periods: int) -> list[Make]:
    return [lambda s, H=H: {"sync": sync(), "period": H} for H in periods]


ring = eq.topology.Ring
CHOICES: dict[str, list[Make]] = {
    "all-reduce": [lambda s: {"sync": eq.sync.AllReduce()}],
    "all-reduce, cd-grab": [lambda s: {"sync": eq.sync.AllReduce(), "order": eq.order.CDGraB(signal="last-layer")}],
    "periodic-average": periodic(eq.sync.PeriodicAverage, 4, 16),
    "diloco": periodic(lambda: eq.sync.DiLoCo(lr=0.7, momentum=0.6), 4, 16),
    "periodic-average, norm-test": [
        lambda s, H=H: {"period": H, "batch": eq.batch.NormTest(start=16, most=128, eta=0.95)} for H in (4, 16)
    ],
    "d-psgd": periodic(lambda: eq.sync.DPSGD(topology=ring()), 1, 4),
    "detag": [lambda s: {"sync": eq.sync.DeTAG(topology=ring())}],
    "k-gt": periodic(lambda: eq.sync.KGT(topology=ring()), 4, 8),
    "easgd": periodic(eq.sync.EASGD, 4, 16),
    "lgrawa": periodic(eq.sync.LGRAWA, 4, 16),
    "lgrawa, total-steps": [
        lambda s, H=H: {"sync": eq.sync.LGRAWA(), "period": eq.period.TotalSteps(steps=H)} for H in (4, 16)
    ],
    "all-reduce, submodular": [lambda s: {"sync": eq.sync.AllReduce(), **fair(s)}],
    "periodic-average, submodular": [lambda s, H=H: {"period": H, **fair(s)} for H in (4, 16)],
}
MOVES_DATA = ("all-reduce, submodular", "periodic-average, submodular")
CACHE: dict[str, Any] = {}


class Task(NamedTuple):
    situation: str
    choice: str
    variant: int
    rate: float
    seed: int


def one(job: tuple[Task, argparse.Namespace]) -> tuple[Task, dict[str, Any]]:
    task, args = job
    torch.set_num_threads(1)
    if not CACHE:
        CACHE["data"] = Digits().load()
    data, situation = CACHE["data"], SITUATIONS[task.situation]
    settings: dict[str, Any] = {"partition": situation.partition(), "batch": 16}
    settings |= CHOICES[task.choice][task.variant](situation)

    def model() -> nn.Module:
        torch.manual_seed(task.seed)
        return MLP(hidden=[args.hidden, args.hidden]).build(data)

    never = {"seconds": math.inf, "samples": math.inf, "rounds": math.inf, "bytes": math.inf, "wait": math.nan}
    try:
        run = eq.train(
            model,
            nn.CrossEntropyLoss(),
            data.train,
            test=data.test,
            optimizer=lambda p: torch.optim.SGD(p, lr=task.rate),
            workers=args.workers,
            cluster=situation.cluster(args.workers),
            epochs=args.epochs,
            until=f"accuracy={args.target}",
            evaluate_every=0.25,
            nonfinite="skip",
            seed=task.seed,
            **settings,
        )
    except WorkerError:
        return task, never
    reached, rows = run.result["reached"], run.result["workers"]
    if reached is None:
        return task, never
    total = sum(row[key] for row in rows for key in ("compute", "wait", "communicate"))
    return task, {
        "seconds": reached["simulated_seconds"],
        "samples": reached["samples"],
        "rounds": reached["rounds"],
        "bytes": reached["bytes"],
        "wait": sum(row["wait"] for row in rows) / total,
        "communicate": sum(row["communicate"] for row in rows) / total,
    }


def table(situation: str, best: dict[str, Task], rows: dict[Task, dict[str, Any]], seeds: list[int]) -> list[str]:
    lines = [
        "| choice | simulated s | examples | rounds | MB sent | waiting | learning rate, variant |",
        "|---|---|---|---|---|---|---|",
    ]
    ranking = []
    for name, task in best.items():
        mine = [rows[task._replace(seed=seed)] for seed in seeds]
        ranking.append((statistics.mean(r["seconds"] for r in mine), name, task, mine))
    for seconds, name, task, mine in sorted(ranking, key=lambda f: f[0]):
        if not math.isfinite(seconds):
            reached = sum(math.isfinite(r["seconds"]) for r in mine)
            lines.append(
                f"| {name} | reached with {reached} of {len(mine)} seeds | | | | | {task.rate:g}, {task.variant} |"
            )
            continue
        spread = statistics.stdev(r["seconds"] for r in mine) if len(mine) > 1 else math.nan
        mean = {key: statistics.mean(r[key] for r in mine) for key in mine[0]}
        lines.append(
            f"| {name} | {seconds:.2f} ± {spread:.2f} | {mean['samples']:,.0f} | {mean['rounds']:,.0f} | "
            f"{mean['bytes'] / 1e6:.1f} | {mean['wait']:.0%} | {variant_words(name, task)} |"
        )
    return lines


def variant_words(name: str, task: Task) -> str:
    settings = CHOICES[name][task.variant](SITUATIONS[task.situation])
    period = settings.get("period")
    steps = period if isinstance(period, int) else getattr(period, "steps", None)
    return f"{task.rate:g}" + (f", period {steps}" if steps and steps > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--situations", default=",".join(SITUATIONS))
    parser.add_argument("--choices", default=";".join(CHOICES), help="names, with a semicolon between them")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=float, default=60)
    parser.add_argument("--target", type=float, default=0.93)
    parser.add_argument("--rates", type=lambda t: [float(v) for v in t.split(",")], default=[0.1, 0.3, 1.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--markdown", metavar="FILE", help="also write the tables")
    parser.add_argument("--json", metavar="FILE", help="also write {situation: {choice: seconds}}")
    args = parser.parse_args()
    names, seeds, started = args.choices.split(";"), list(range(1, args.seeds + 1)), time.time()
    text, numbers = [], {}
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        for situation in args.situations.split(","):
            able = [n for n in names if SITUATIONS[situation].shuffled == 1 or n not in MOVES_DATA]
            trial = [
                Task(situation, n, v, rate, 0) for n in able for v in range(len(CHOICES[n])) for rate in args.rates
            ]
            rows = dict(pool.imap_unordered(one, [(task, args) for task in trial]))
            best = {n: min((t for t in trial if t.choice == n), key=lambda t: rows[t]["seconds"]) for n in able}
            again = [task._replace(seed=seed) for task in best.values() for seed in seeds]
            rows |= dict(pool.imap_unordered(one, [(task, args) for task in again]))
            lines = table(situation, best, rows, seeds)
            numbers[situation] = {
                n: statistics.mean(rows[t._replace(seed=seed)]["seconds"] for seed in seeds) for n, t in best.items()
            }
            text += [f"### {situation}: {SITUATIONS[situation].words}", "", *lines, ""]
            print("\n".join(text[-len(lines) - 3 :]), flush=True)
    print(f"{args.workers} workers, {args.seeds} seeds, accuracy {args.target}, {time.time() - started:.0f} s")
    if args.markdown:
        Path(args.markdown).write_text("\n".join(text))
    if args.json:
        finite = {s: {n: v if math.isfinite(v) else None for n, v in row.items()} for s, row in numbers.items()}
        Path(args.json).write_text(json.dumps(finite, indent=1) + "\n")


if __name__ == "__main__":
    main()
