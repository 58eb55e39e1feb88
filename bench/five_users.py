"""What should five typical users run? The tables of docs/users.md, and the recipes that the package ships.

    python five_users.py --out DIR                   # all five: about half an hour on one core
    python five_users.py --out DIR --only office,wan
    python five_users.py --out DIR --write           # also docs/measured/five_users.json and the recipes of the winners

Each user has a cluster file of the package and several choices. Every choice is tuned alike: `equipoise compare` runs
it in two variants (two periods, or without and with momentum) at every learning rate, with a seed that is not reported;
the fastest runs again with three other seeds. Times are simulated, so the load of this machine does not matter.
`--out` keeps finished runs: the same command continues.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "src" / "equipoise" / "recipes"
MEASURED = ROOT / "docs" / "measured" / "five_users.json"
TUNING_SEED = 100
Table = dict[str, Any]


class User(NamedTuple):
    words: str
    base: Table
    rates: tuple[float, ...]
    choices: dict[str, list[Table]]  # the variants of a choice; the fastest one counts


def every(sync: Table | str, *periods: int, **more: Any) -> list[Table]:
    return [{"sync": sync, "period": period, **more} for period in periods]


def momentum(**choice: Any) -> list[Table]:
    """What has no period and no outer momentum runs without and with momentum instead."""
    return [choice, {**choice, "momentum": 0.9}]


DIGITS: Table = {
    "data": "digits",
    "model": {"name": "mlp", "hidden": [256, 256]},
    "batch": 16,
    "until": "accuracy=0.95",
    "epochs": 20,
    "evaluate_every": 0.25,
    "log_every": 50,
}
MANY: Table = {
    "data": {"name": "synthetic", "examples": 16000, "features": 64, "classes": 10, "noise": 0.3},
    "model": {"name": "mlp", "hidden": [32]},
    "partition": {"name": "dirichlet", "alpha": 0.3},
    "batch": 16,
    "until": "accuracy=0.75",
    "epochs": 8,
    "budget": "30s",
    "evaluate_every": 0.5,
    "log_every": 50,
}
BY_SPEED: Table = {"partition": {"name": "iid", "speeds": [1, 3]}, "batch": {"name": "proportional", "mean": 16}}
DILOCO: Table = {"name": "diloco", "lr": 1.0, "momentum": 0.5}
RATES = (0.1, 0.2, 0.4, 0.8, 1.6)

USERS = {
    "home": User(
        "two GPUs of unequal age, speeds 1:3, 40 Gbit",
        DIGITS,
        RATES,
        {
            "all-reduce": momentum(sync="all-reduce"),
            "all-reduce, batches by speed": momentum(sync="all-reduce", **BY_SPEED),
            "periodic-average": every("periodic-average", 4, 16),
            "periodic-average, batches by speed": every("periodic-average", 4, 16, **BY_SPEED),
            "diloco, batches by speed": every(DILOCO, 4, 16, **BY_SPEED),
            "lgrawa, total-steps": [
                {"sync": "lgrawa", "period": {"name": "total-steps", "steps": steps}} for steps in (4, 16)
            ],
            "ad-psgd": every("ad-psgd", 1, 4),
        },
    ),
    "office": User(
        "four machines, 1 Gbit, 0.2 ms",
        DIGITS,
        RATES,
        {
            "all-reduce": momentum(sync="all-reduce"),
            "all-reduce, int8": momentum(sync="all-reduce", wire="int8"),
            "periodic-average": every("periodic-average", 4, 16),
            "periodic-average, int4": every("periodic-average", 4, 16, wire="int4"),
            "diloco": every(DILOCO, 4, 16),
            "diloco, int4": every(DILOCO, 4, 16, wire="int4"),
            "lgrawa": every("lgrawa", 8, 32),
            "d-psgd": every("d-psgd", 1, 4, topology="ring"),
        },
    ),
    "wan": User(
        "three sites with two machines each, 50 Mbit and 30 ms between sites",
        DIGITS,
        RATES[1:4],
        {
            "all-reduce": momentum(sync="all-reduce"),
            "all-reduce, int4": momentum(sync="all-reduce", wire="int4"),
            "periodic-average": every("periodic-average", 16, 64),
            "periodic-average, int4": every("periodic-average", 16, 64, wire="int4"),
            "diloco": every(DILOCO, 16, 64),
            "diloco, int4": every(DILOCO, 16, 64, wire="int4"),
            "diloco, overlapped": [
                {"sync": {**DILOCO, "delay": delay}, "period": period} for period, delay in ((16, 12), (64, 32))
            ],
            "d-psgd": every("d-psgd", 4, 16, topology="ring"),
        },
    ),
    "private": User(
        "eight institutions, data sorted by label that may not move, 100 Mbit and 10 ms",
        {**DIGITS, "partition": "sorted", "until": "accuracy=0.9", "budget": "20s"},
        RATES[:4],
        {
            "all-reduce": momentum(sync="all-reduce"),
            "all-reduce, int8": momentum(sync="all-reduce", wire="int8"),
            "periodic-average": every("periodic-average", 2, 4),
            "diloco": every(DILOCO, 2, 4),
            "k-gt": every("k-gt", 2, 4, topology="ring"),
            "d-psgd": every("d-psgd", 1, 2, topology="ring"),
            "lgrawa": every("lgrawa", 2, 8),
        },
    ),
    "many": User(
        "256 simulated workers, non-IID data (Dirichlet 0.3), 1 Gbit and 1 ms",
        MANY,
        (0.3, 1.0, 3.0),
        {
            "all-reduce": [{"sync": "all-reduce"}],
            "periodic-average": every("periodic-average", 8),
            "d-psgd, ring": every("d-psgd", 1, topology="ring"),
            "d-psgd, base-k": every("d-psgd", 1, topology="base-k"),
            "k-gt, base-k": every("k-gt", 4, topology="base-k"),
        },
    ),
}


def compare(files: list[Path], cluster: Path, out: Path, *more: str) -> dict[str, Any]:
    """`equipoise compare` on recipe files; what it wrote to compare.json."""
    command = [sys.executable, "-m", "equipoise", "compare", *map(str, files), "--cluster", str(cluster)]
    subprocess.run([*command, "--out", str(out), "--jobs", "1", *more], check=True)
    content: dict[str, Any] = json.loads((out / "compare.json").read_text())
    return content


def recipe_file(folder: Path, name: str, table: Table) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(tomli_w.dumps(table))
    return path


def tuned(name: str, user: User, out: Path) -> dict[str, Table]:
    """The variant and the learning rate of every choice that reaches the target first with the tuning seed."""
    variants = {
        f"{choice}" + (f" ({number + 1})" if len(tables) > 1 else ""): (choice, {**user.base, **table})
        for choice, tables in user.choices.items()
        for number, table in enumerate(tables)
    }
    files = [recipe_file(out / "choices", label, table) for label, (_, table) in variants.items()]
    rates = "lr=" + ",".join(f"{rate:g}" for rate in user.rates)
    seeds = ("--seeds", "1", "--seed", str(TUNING_SEED))
    rows = compare(files, cluster_of(name), out / "tuning", "--vary", rates, *seeds)["rows"]
    best: dict[str, tuple[tuple[float, float], Table]] = {}
    for row in rows:
        label, _, rate = row["name"].rpartition(", lr ")
        choice, table = variants[label]
        mean = row["time"]["mean"]
        score = (-row["reached"], mean if mean is not None and math.isfinite(mean) else math.inf)
        if choice not in best or score < best[choice][0]:
            best[choice] = score, {**table, "lr": float(rate)}
    return {choice: best[choice][1] for choice in user.choices}


def measure(name: str, user: User, out: Path, seeds: int) -> dict[str, Any]:
    chosen = tuned(name, user, out)
    files = [recipe_file(out / "tuned", choice, table) for choice, table in chosen.items()]
    found = compare(files, cluster_of(name), out / "final", "--seeds", str(seeds), "--seed", "1")
    rows = []
    for row in found["rows"]:
        results = [
            json.loads((Path(run["folder"]) / "result.json").read_text())
            for run in found["runs"]
            if run["choice"] == row["name"] and run["state"] == "done"
        ]
        local = [result["models"]["local"]["accuracy"] for result in results]
        rows.append(
            {
                "choice": row["name"],
                "seconds": row["time"]["mean"],
                "deviation": row["time"]["deviation"],
                "reached": row["reached"],
                "seeds": row["seeds"],
                "examples": row["samples"]["mean"],
                "rounds": row["rounds"]["mean"],
                "bytes": row["bytes"]["mean"],
                "spent": row["spent"],
                "local_accuracy": sum(local) / len(local) if local else None,
                "real_seconds": sum(result["seconds"] for result in results) / max(1, len(results)),
                "recipe": chosen[row["name"]],
            }
        )
    return {
        "user": user.words,
        "until": found["until"],
        "rates": list(user.rates),
        "date": datetime.date.today().isoformat(),
        "command": f"python bench/five_users.py --only {name} --seeds {seeds} --out DIR --write",
        "sentence": found["sentence"],
        "rows": rows,
    }


def cluster_of(name: str) -> Path:
    return RECIPES / "clusters" / f"{name}.toml"


def recommended(name: str, measured: dict[str, Any]) -> str:
    """The recipe file of the first choice."""
    first = measured["rows"][0]
    virtual = {"cluster": name} if name == "many" else {}
    table = {"workers": workers(name), **virtual, **first["recipe"]}
    table.pop("budget", None)  # of the comparison
    head = (
        f"# For {measured['user']}: {first['choice']},\n"
        f"# the first of {len(measured['rows'])} choices that were measured ({measured['date']}, docs/users.md).\n"
        "# Data, model, target and learning rate are yours to replace:\n"
        f"#   equipoise train {name} --data my.module:load --model my.module:make --until loss=0.3 --lr 0.1\n"
    )
    return head + tomli_w.dumps(table)


def workers(name: str) -> int:
    from equipoise.simulate.cluster import Cluster

    return Cluster.load(cluster_of(name)).size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the comparisons")
    parser.add_argument("--only", default=",".join(USERS), metavar="A,B")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write docs/measured/five_users.json and the recipes")
    args = parser.parse_args()
    for name in args.only.split(","):
        found = measure(name, USERS[name], Path(args.out) / name, args.seeds)
        print(f"{name}: {found['sentence']}", flush=True)
        if args.write:
            kept = json.loads(MEASURED.read_text()) if MEASURED.is_file() else {}
            MEASURED.write_text(json.dumps({**kept, name: found}, indent=1) + "\n")
            (RECIPES / f"{name}.toml").write_text(recommended(name, found))


if __name__ == "__main__":
    main()
