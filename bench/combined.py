"""All choices together compared with each alone, on unequal workers with slow links: simulated seconds to a target.

    python combined.py                                                   # bundled digits
    python combined.py --data fashion-mnist --data-dir DIR --limit 8000  # LeNet on a part of Fashion-MNIST
    python combined.py --jobs 2 --json combined.json

Every choice has its own grid of learning rates and, if it has one, periods; the fastest on a tuning seed runs with
other seeds. Goal: the combined run reaches the target in at most half the time of the best single choice. The last
table is an ablation: it removes one part of the combination at a time, at the same learning rate and period.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import report

from equipoise.compare.table import Spread
from equipoise.config.recipe import Recipe
from equipoise.core.errors import WorkerError
from equipoise.loop.from_recipe import assemble
from equipoise.loop.train import run_job

SPEEDS = [1, 1, 2, 2, 4, 4, 8, 8]
CLUSTER = """
examples_per_second = 500
[[workers]]
count = 2
speed = 1
[[workers]]
count = 2
speed = 2
[[workers]]
count = 2
speed = 4
[[workers]]
count = 2
speed = 8
[links]
bandwidth = "20 Mbit"
latency = "10 ms"
"""
RATES = (0.2, 0.4, 0.8)
PERIODS = (4, 16)
BLOCKS = {"partition": {"name": "submodular", "speeds": SPEEDS}}
EVEN = BLOCKS | {"batch": {"name": "proportional", "mean": 16}}
GROWING = {"batch": {"name": "norm-test", "start": 16, "most": 64}, "scaling": "linear"}
BOTH = BLOCKS | {"batch": {"name": "norm-test", "start": 16, "most": 64, "speeds": SPEEDS}, "scaling": "linear"}
TOGETHER, OWN = {"order": "cd-grab"}, {"order": "id-grab"}
LGRAWA = {"sync": {"name": "lgrawa", "pull": 0.5}}
AVERAGE = {"sync": "periodic-average"}
CODED = {"wire": "int4"}


class Choice(NamedTuple):
    name: str
    table: dict[str, Any]
    local: bool = False  # does it take local steps?
    combined: bool = False

    def grid(self) -> list[dict[str, Any]]:
        rates = [self.table | {"lr": lr} for lr in RATES]
        return [table | {"period": h} for table in rates for h in PERIODS] if self.local else rates


CHOICES = [
    Choice("all-reduce (baseline)", {"sync": "all-reduce"}),
    Choice("CD-GraB, all-reduce", TOGETHER),
    Choice("DeTAG on a ring", {"sync": "detag"}),
    Choice("submodular blocks, all-reduce", EVEN),
    Choice("norm test, all-reduce", GROWING),
    Choice("int4, all-reduce", CODED),
    Choice("Local SGD", AVERAGE, local=True),
    Choice("LGRAWA", LGRAWA, local=True),
    Choice("Local SGD, norm test", AVERAGE | GROWING, local=True, combined=True),
    Choice("Local SGD, int4", AVERAGE | CODED, local=True, combined=True),
    Choice("blocks, averaged", EVEN | AVERAGE, local=True, combined=True),
    Choice("blocks, averaged, int4", EVEN | AVERAGE | CODED, local=True, combined=True),
    Choice("blocks, CD-GraB, averaged, int4", EVEN | AVERAGE | CODED | TOGETHER, local=True, combined=True),
    Choice("blocks, ID-GraB, averaged, int4", EVEN | AVERAGE | CODED | OWN, local=True, combined=True),
    Choice("blocks, ID-GraB, LGRAWA, int4", EVEN | LGRAWA | CODED | OWN, local=True, combined=True),
    Choice("blocks, norm test, ID-GraB, LGRAWA", BOTH | LGRAWA | OWN, local=True, combined=True),
]


def without(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The combination with one piece taken out."""
    pieces = {
        "its order": ("order", {"order": "reshuffle"}),
        "its wire": ("wire", {"wire": "float32"}),
        "its norm test (fixed batches by speed)": ("scaling", EVEN | {"scaling": "none"}),
        "blocks and batches by speed": ("partition", {"partition": "iid", "batch": 16, "scaling": "none"}),
        "local steps (all-reduce at every step)": ("period", {"sync": "all-reduce", "period": 1}),
    }
    return {name: table | changed for name, (axis, changed) in pieces.items() if axis in table}


def one(task: tuple[dict[str, Any], int, argparse.Namespace]) -> dict[str, Any]:
    """The time of one run to the target, infinite if it never gets there, and what it cost."""
    table, seed, args = task
    torch.set_num_threads(1)
    data: dict[str, Any] = {"name": args.data} | ({"dir": args.data_dir} if args.data_dir else {})
    data |= {"limit": args.limit} if args.limit else {}
    model = {"name": "mlp", "hidden": [64]} if args.data == "digits" else {"name": "lenet"}
    common = {"data": data, "model": model, "batch": 16, "epochs": args.epochs, "until": args.until, "seed": seed}
    common |= {"cluster": args.cluster, "evaluate_every": 0.25}
    job, how = assemble(Recipe.from_dict(common | table))
    result = {"time": float("inf"), "samples": 0, "rounds": 0, "bytes": 0}
    with contextlib.suppress(WorkerError):  # a learning rate that is too large
        reached = run_job(job, **how).result["reached"]
        if reached is not None:
            result = {name: reached[name] for name in result if name != "time"} | {"time": reached["simulated_seconds"]}
    print(
        f"  {words(table)}, seed {seed}: {result['time']:.4g} s, {result['samples']:,} examples, "
        f"{result['rounds']} rounds",
        flush=True,
    )
    return result


class Runs:
    """Runs in a pool. --cache FILE keeps finished runs, so that a long benchmark can be continued."""

    def __init__(self, pool: Any, args: argparse.Namespace):
        self.pool, self.args, self.known = pool, args, {}
        self.path = Path(args.cache) if args.cache else None
        if self.path is not None and self.path.is_file():
            self.known = dict(json.loads(line) for line in self.path.read_text().splitlines())

    def __call__(self, tasks: list[tuple[dict[str, Any], int]]) -> list[dict[str, Any]]:
        about = [self.args.data, self.args.limit, self.args.until, self.args.epochs]
        keys = [json.dumps([table, seed, *about], sort_keys=True) for table, seed in tasks]
        new = {key: task for key, task in zip(keys, tasks, strict=True) if key not in self.known}
        results = self.pool.imap(one, [(table, seed, self.args) for table, seed in new.values()])
        for key, result in zip(new, results, strict=True):
            self.known[key] = result
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps([key, result]) + "\n")
        return [self.known[key] for key in keys]


def words(table: dict[str, Any]) -> str:
    names = [
        v["name"] if isinstance(v, dict) else str(v) for k, v in table.items() if k not in ("lr", "period", "scaling")
    ]
    return ", ".join(names) + f", lr {table['lr']}" + (f", period {table['period']}" if "period" in table else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--until", default="accuracy=0.95")
    parser.add_argument("--epochs", type=float, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument(
        "--cache", metavar="FILE", help="keep finished runs here, and do not repeat those that are there"
    )
    args = parser.parse_args()
    with (
        tempfile.NamedTemporaryFile("w", suffix=".toml") as file,
        multiprocessing.get_context("fork").Pool(args.jobs) as pool,
    ):
        file.write(CLUSTER)
        file.flush()
        args.cluster = str(Path(file.name).resolve())
        grid = [(choice, table) for choice in CHOICES for table in choice.grid()]
        print(f"tuning: {len(grid)} runs with seed 100")
        run = Runs(pool, args)
        tuned = run([(table, 100) for _, table in grid])
        best = {}
        for choice in CHOICES:
            own = [
                (result["time"], i) for i, (result, (c, _)) in enumerate(zip(tuned, grid, strict=True)) if c is choice
            ]
            best[choice.name] = grid[min(own)[1]][1]
        print(f"the best of each, seeds 0 to {args.seeds - 1}")
        tasks = [(name, table, seed) for name, table in best.items() for seed in range(args.seeds)]
        runs = run([(table, seed) for _, table, seed in tasks])
        times = {name: [r for r, t in zip(runs, tasks, strict=True) if t[0] == name] for name in best}
        mean = {name: statistics.fmean(r["time"] for r in rows) for name, rows in times.items()}
        together = min((c.name for c in CHOICES if c.combined), key=mean.__getitem__)
        single = min((c.name for c in CHOICES if not c.combined), key=mean.__getitem__)
        print(f"{together} without one of its pieces")
        pieces = without(best[together])
        tasks = [(name, table, seed) for name, table in pieces.items() for seed in range(args.seeds)]
        runs = run([(table, seed) for _, table, seed in tasks])
        for name in pieces:
            times[f"without {name}"] = [r for r, t in zip(runs, tasks, strict=True) if t[0] == name]
    print(f"\nsimulated seconds to {args.until}, {args.seeds} seeds\n")
    print(f"| choice | s to {args.until} | examples | rounds | bytes | chosen |\n|---|---|---|---|---|---|")
    for name, rows in sorted(
        times.items(), key=lambda item: (item[0].startswith("without"), statistics.fmean(r["time"] for r in item[1]))
    ):
        cells = [
            Spread.of(r[key] for r in rows).format("bytes" if key == "bytes" else "")
            for key in ("time", "samples", "rounds", "bytes")
        ]
        chosen = best.get(name) or pieces[name.removeprefix("without ")]
        setting = f"lr {chosen['lr']}" + (f", period {chosen['period']}" if "period" in chosen else "")
        print(f"| {name} | {' | '.join(cells)} | {setting} |")
    base = CHOICES[0].name
    ratios: list[tuple[str, float, float | None]] = [
        (f"combined ({together}) / best single ({single})", times_ratio(times, together, single), 0.5),
        (f"combined / {base}", times_ratio(times, together, base), None),
    ]
    report("time to target", ratios, args.json)


def times_ratio(times: dict[str, list[dict[str, Any]]], a: str, b: str) -> float:
    return statistics.fmean(r["time"] for r in times[a]) / statistics.fmean(r["time"] for r in times[b])


if __name__ == "__main__":
    main()
