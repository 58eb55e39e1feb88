"""Which choice is fastest where? Time to a target in five situations, on two problems: the tables of docs/choosing.md.

    python choosing.py                              # bundled digits, 8 workers: about ten minutes of a core
    python choosing.py --problem cifar10 --data-dir DIR --situations slow,sorted,all
    python choosing.py --seeds 10 --workers 16
    python choosing.py --situations rack,slow --cache FILE --table docs/measured/choosing.json

A situation is a described cluster and a partition of the data. A problem is data, a network, and a target. Every choice
has its own learning rate (`--rates`), the one with the shortest time on a tuning seed that is not reported; if it has a
period, the better of two. The result is the simulated time until the mean (or centre) model reaches the target test
accuracy. A tuning run ends when it has taken longer than the best one of its choice.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import equipoise as eq
from equipoise.core.errors import WorkerError
from equipoise.data import CIFAR10, Digits
from equipoise.loop.lr_schedule import LRSchedule
from equipoise.models import MLP
from equipoise.simulate.cluster import Link


class Situation(NamedTuple):
    words: str
    speeds: tuple[float, ...]  # repeated over the workers
    mbit: float  # for the model of digits; in proportion to the size of others
    ms: float
    shuffled: float  # the part of the data that is not sorted by label

    def cluster(self, workers: int, size: float) -> eq.Cluster:
        rates = [200.0 * self.speeds[i * len(self.speeds) // workers] for i in range(workers)]
        return eq.Cluster(rates, Link(self.mbit * size * 1e6, self.ms / 1e3))

    def partition(self) -> Any:
        return eq.partition.IID() if self.shuffled == 1 else eq.partition.Sorted(shuffled=self.shuffled)


SITUATIONS = {
    "rack": Situation("equally fast workers, fast links, IID data", (1,), 1000, 0.1, 1),
    "slow": Situation("equally fast workers, slow links, IID data", (1,), 2, 20, 1),
    "unequal": Situation("speeds 1:1:2:4, fast links, IID data", (1, 1, 2, 4), 1000, 0.1, 1),
    "sorted": Situation("equally fast workers, medium links, data sorted by label", (1,), 20, 2, 0),
    "all": Situation("speeds 1:1:2:4, slow links, half the data sorted by label", (1, 1, 2, 4), 2, 20, 0.5),
}


class Problem(NamedTuple):
    load: Callable[[argparse.Namespace], tuple[Any, Any, Any]]  # training and test pairs, and a builder of the model
    size: float  # of the model, relative to that of digits: links are faster by as much
    rates: tuple[float, ...]
    target: float
    epochs: float
    every: float  # epochs between evaluations


def digits(args: argparse.Namespace) -> tuple[Any, Any, Any]:
    """An MLP with two hidden layers of 64: 8,970 parameters."""
    data = Digits().load()
    return data.train, data.test, lambda: MLP(hidden=[64, 64]).build(data)


def cifar10(args: argparse.Namespace) -> tuple[Any, Any, Any]:
    """5,000 images averaged to 16 x 16, and a CNN of 38,570 parameters with strides in place of pooling."""
    data = CIFAR10(dir=args.data_dir, limit=5000, test_limit=500).load()
    shrink = nn.AvgPool2d(2)
    parts = [(shrink(part.x), part.y) for part in (data.train, data.test)]

    def model() -> nn.Module:
        convolutions = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*convolutions, nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))

    return *parts, model


PROBLEMS = {
    "digits": Problem(digits, 1.0, (0.4, 0.2), 0.9, 30, 0.25),
    "cifar10": Problem(cifar10, 38570 / 8970, (0.2, 0.1), 0.38, 24, 0.25),
}
Make = Callable[[Situation], dict[str, Any]]


def fair(situation: Situation) -> dict[str, Any]:
    """Blocks and batches by speed; only for data that may be moved."""
    return {
        "partition": eq.partition.Submodular(speeds="measured", objective="herding"),
        "batch": eq.batch.Proportional(16),
    }


def periodic(sync: Callable[[], Any], *periods: int, **more: Any) -> list[Make]:
    return [lambda s, H=H: {"sync": sync(), "period": H, **more} for H in periods]


def annealed(epochs: float) -> dict[str, Any]:
    """A third of the rounds of batch 16, over a run of so many epochs whose learning rate decays."""
    return {
        "period": 4,
        "batch": eq.batch.Annealed(start=16, rounds=1 / 3),
        "scheduler": partial(LRSchedule, kind="cosine", warmup=0.1),
        "epochs": epochs,
    }


ring = eq.topology.Ring
CHOICES: dict[str, list[Make]] = {
    "all-reduce": [lambda s: {"sync": eq.sync.AllReduce()}],
    "all-reduce, cd-grab": [lambda s: {"sync": eq.sync.AllReduce(), "order": eq.order.CDGraB()}],
    "all-reduce, int4": [lambda s: {"sync": eq.sync.AllReduce(), "wire": eq.wire.Int4()}],
    "all-reduce, submodular": [lambda s: {"sync": eq.sync.AllReduce(), **fair(s)}],
    "periodic-average": periodic(eq.sync.PeriodicAverage, 4, 16),
    "periodic-average, int4": periodic(eq.sync.PeriodicAverage, 4, 16, wire=eq.wire.Int4()),
    "periodic-average, annealed": [lambda s, E=E: annealed(E) for E in (30, 60)],
    "periodic-average, submodular": [lambda s, H=H: {"period": H, **fair(s)} for H in (4, 16)],
    "diloco": periodic(lambda: eq.sync.DiLoCo(lr=0.7, momentum=0.6), 4, 16),
    "d-psgd": periodic(lambda: eq.sync.DPSGD(topology=ring()), 1, 4),
    "d2": [lambda s: {"sync": eq.sync.D2(topology=ring(lazy=True))}],
    "detag": periodic(lambda: eq.sync.DeTAG(topology=ring()), 1, 2, 8),
    "lgrawa": periodic(eq.sync.LGRAWA, 4, 16),
    "lgrawa, total-steps": [
        lambda s, H=H: {"sync": eq.sync.LGRAWA(), "period": eq.period.TotalSteps(steps=H)} for H in (4, 16)
    ],
}
MOVES_DATA = ("all-reduce, submodular", "periodic-average, submodular")
NEVER = {"seconds": math.inf, "samples": math.inf, "rounds": math.inf, "bytes": math.inf, "wait": math.nan}


class Task(NamedTuple):
    problem: str
    situation: str
    choice: str
    variant: int
    rate: float
    seed: int


@cache
def loaded(problem: str, data_dir: str | None) -> tuple[Any, Any, Any]:
    return PROBLEMS[problem].load(argparse.Namespace(data_dir=data_dir))


def one(task: Task, args: argparse.Namespace, budget: float = math.inf) -> dict[str, Any]:
    """What a run took to its target; infinite if it did not get there, or not within the budget."""
    torch.set_num_threads(1)
    problem, situation = PROBLEMS[task.problem], SITUATIONS[task.situation]
    train, test, build = loaded(task.problem, args.data_dir)
    settings: dict[str, Any] = {"partition": situation.partition(), "batch": 16, "epochs": problem.epochs}
    settings |= CHOICES[task.choice][task.variant](situation)
    if "scheduler" not in settings and math.isfinite(budget):  # a schedule would follow the budget
        settings["budget"] = budget

    def model() -> nn.Module:
        torch.manual_seed(task.seed)
        return build()  # type: ignore[no-any-return]

    try:
        run = eq.train(
            model,
            nn.CrossEntropyLoss(),
            train,
            test=test,
            optimizer=lambda p: torch.optim.SGD(p, lr=task.rate),
            workers=args.workers,
            cluster=situation.cluster(args.workers, problem.size),
            until=f"accuracy={problem.target}",
            evaluate_every=problem.every,
            nonfinite="skip",
            seed=task.seed,
            **settings,
        )
    except WorkerError:
        return NEVER
    if run.stopped:  # by a signal: no result
        raise SystemExit(128 + run.stopped)
    reached, rows = run.result["reached"], run.result["workers"]
    if reached is None:
        return NEVER
    total = sum(row[key] for row in rows for key in ("compute", "wait", "communicate"))
    return {
        "seconds": reached["simulated_seconds"],
        "samples": reached["samples"],
        "rounds": reached["rounds"],
        "bytes": reached["bytes"],
        "wait": sum(row["wait"] for row in rows) / total,
    }


class Runs:
    """`--cache FILE` keeps finished runs, so that a long benchmark can be continued."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.path = args, Path(args.cache) if args.cache else None
        self.known: dict[str, dict[str, Any]] = {}
        if self.path is not None and self.path.is_file():
            self.known = dict(json.loads(line) for line in self.path.read_text().splitlines())

    def __call__(self, task: Task, budget: float = math.inf) -> dict[str, Any]:
        key = json.dumps([*task, self.args.workers])
        if key not in self.known:
            self.known[key] = one(task, self.args, budget)
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps([key, self.known[key]]) + "\n")
        return self.known[key]

    def tuned(self, problem: str, situation: str, choice: str, rates: list[float]) -> Task:
        """The variant and the learning rate that are fastest with the tuning seed."""
        best, least = None, math.inf
        for variant in range(len(CHOICES[choice])):
            for rate in rates:
                task = Task(problem, situation, choice, variant, rate, 0)
                seconds = self(task, least)["seconds"]
                if best is None or seconds < least:
                    best, least = task, seconds
        assert best is not None
        return best


def setting(task: Task) -> str:
    """The chosen learning rate and what else was chosen, in words."""
    settings = CHOICES[task.choice][task.variant](SITUATIONS[task.situation])
    period = settings.get("period")
    steps = period if isinstance(period, int) else getattr(period, "steps", None)
    words = [f"{task.rate:g}", *([f"period {steps}"] if steps and steps > 1 else [])]
    return ", ".join([*words, *([f"{settings['epochs']} epochs"] if "epochs" in settings else [])])


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The fastest first."""
    lines = []
    for name, row in sorted(rows.items(), key=lambda item: statistics.mean(item[1]["seconds"])):
        each = ", ".join(f"{seconds:.2f}" for seconds in row["seconds"])
        lines.append(f"  {name:<30}{statistics.mean(row['seconds']):8.2f} s ({each})  {row['setting']}")
    return "\n".join(lines)


def reachable(row: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it: null for what was never reached."""
    lists = {key: [v if math.isfinite(v) else None for v in row[key]] for key in NEVER}
    return row | lists


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=PROBLEMS, default="digits")
    parser.add_argument("--data-dir", help="folder with CIFAR-10")
    parser.add_argument("--situations", default=",".join(SITUATIONS))
    parser.add_argument("--choices", default=";".join(CHOICES), help="names, with a semicolon between them")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument(
        "--rates", type=lambda t: [float(v) for v in t.split(",")], help="learning rates to choose from"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cache", metavar="FILE", help="keep finished runs here, and do not repeat them")
    parser.add_argument("--table", metavar="FILE", help="write the tables into this file, beside others that it has")
    args = parser.parse_args()
    problem, seeds, started = PROBLEMS[args.problem], range(1, args.seeds + 1), time.time()
    run = Runs(args)
    for situation in args.situations.split(","):
        rows = {}
        for name in args.choices.split(";"):
            if name in MOVES_DATA and SITUATIONS[situation].shuffled < 1:
                continue
            best = run.tuned(args.problem, situation, name, args.rates or list(problem.rates))
            found = [run(best._replace(seed=seed)) for seed in seeds]
            rows[name] = {key: [row[key] for row in found] for key in NEVER} | {"setting": setting(best)}
        print(f"{args.problem}, {SITUATIONS[situation].words}: s to {problem.target}\n{table(rows)}\n", flush=True)
        if args.table:
            path = Path(args.table)
            known = json.loads(path.read_text()) if path.is_file() else {}
            known[f"{args.problem} {situation}"] = {name: reachable(row) for name, row in rows.items()}
            path.write_text(json.dumps(known, indent=1) + "\n")
    print(f"{args.workers} workers, {args.seeds} seeds, {time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
