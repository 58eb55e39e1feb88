"""Is the first choice of `equipoise plan` the fastest on real processes?

    python plan_validation.py search                     # simulated
    python plan_validation.py predict                    # the same choices with seeds that the search has not seen
    sudo python plan_validation.py real                  # on a quiet machine
    python plan_validation.py table [--json FILE]

Each phase takes cases (all, or those named by `--cases 0,3`) and keeps what it has in `--out`, so it can be called case
by case. A case is a cluster file (4 workers, links of 100 Mbit or 1 Gbit, equal speeds or 1:1:2:4), a model and a
target, which is looked for four times in an epoch. `search` calls the command. The choices to measure are the first
three of its finals, float32 all-reduce, and the best one of another sync. `predict` simulates them with new seeds.
`real` runs them with the same seeds, one process per network namespace (namespaces.py), until the target, or for twice
the predicted time of the first choice: then it has lost, and has no other seed. A worker of R examples per second
sleeps at the end of its backward pass so that a step on b examples takes b / R seconds, without communication: two
cores then stand for four machines. The first choice should be the fastest, or within 10 % of it, in 8 of 10 cases; the
mean over seeds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import namespaces
import torch
from torch import nn

from equipoise.config.recipe import Recipe
from equipoise.loop.from_recipe import assemble
from equipoise.loop.train import run_job

WORKERS = 4
SPEEDS = {"equal": (1, 1, 1, 1), "1:1:2:4": (1, 1, 2, 4)}
LINKS = {"100mbit": "100 Mbit", "1gbit": "1 Gbit"}
MODELS = {  # what the user gives
    "large": ["--model.hidden", "[500, 300]", "--momentum", "0.9", "--until", "loss=0.2"],
    "small": ["--model.hidden", "[64]", "--optimizer", "adam", "--until", "loss=0.3"],
    "deep": ["--model.hidden", "[256, 256]", "--momentum", "0.9", "--until", "accuracy=0.94"],
}
PLAIN = ("all-reduce", "float32")
RATES = {"large": 400.0, "small": 100.0, "deep": 200.0}  # examples per second at speed 1: runs of some 5 to 20 s
FIRST_SEED = 100  # the search begins at 0
LONGEST = 2.0  # a run ends after so many times the predicted seconds of the first choice: it has lost
COMPARED = 3  # finalists
STEPS_ALONE = 16
GOAL, MARGIN = 8, 1.1
namespaces.PREFIX, namespaces.NETWORK = "eqplan", "10.231.78"


class Case(NamedTuple):
    model: str
    rate: str
    speeds: str

    @property
    def rates(self) -> list[float]:
        return [RATES[self.model] * speed for speed in SPEEDS[self.speeds]]

    @property
    def name(self) -> str:
        return f"{self.model}, {LINKS[self.rate]}, {self.speeds}"

    @property
    def slug(self) -> str:
        return f"{self.model}-{self.rate}-{self.speeds.replace(':', '')}"


CASES = [Case(model, rate, speeds) for model in MODELS for rate in LINKS for speeds in SPEEDS][:10]


def search(case: Case, folder: Path, args: argparse.Namespace) -> None:
    rows = "".join(f"[[workers]]\nexamples_per_second = {rate}\n" for rate in case.rates)
    text = f'{rows}[links]\nbandwidth = "{LINKS[case.rate]}"\nlatency = "{args.latency}"\n'
    (folder / "cluster.toml").write_text(text)
    command = [sys.executable, "-m", "equipoise", "plan", "--cluster", str(folder / "cluster.toml"), "--data", "digits"]
    command += ["--model", "mlp", *MODELS[case.model], "--evaluate-every", "0.25"]
    command += ["--minutes", str(args.minutes), "--jobs", str(args.jobs), "--quiet", "--out", str(folder / "plan")]
    if not (folder / "plan" / "plan.json").is_file():
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = json.loads((folder / "plan" / "plan.json").read_text())
    content = {
        "runs": sum(1 for _ in (folder / "plan" / "runs").glob("*/*/result.json")),
        "answer": found["answer"],
        "seconds": found["seconds"],
        "interval": found["interval"],
        "choices": chosen(folder / "plan", found),
    }
    keep(folder / "search.json", content)


def chosen(plan: Path, found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Recipes by choice, the first one first: the best finalists, float32 all-reduce, the best one of another sync."""
    tried: dict[str, tuple[bool, float]] = {}
    for rung in found["rungs"]:
        tried |= {trial["choice"]: (not trial["reached"], trial["score"]) for trial in rung["trials"]}
    tables: dict[str, dict[str, Any]] = {}
    for name in sorted(tried, key=lambda name: tried[name]):
        path = next((plan / "runs").glob(f"{slug(name)}/*/recipe.toml"))
        tables[name] = Recipe.load(path).without("cluster", "budget", "out").table()
    names = [row["choice"] for row in found["finals"]][:COMPARED]
    names += [name for name, table in tables.items() if (table["sync"]["name"], table["wire"]["name"]) == PLAIN][:1]
    known = {tables[name]["sync"]["name"] for name in names}
    names += [name for name, table in tables.items() if table["sync"]["name"] not in known][:1]
    return {name: tables[name] for name in dict.fromkeys(names)}


def slug(name: str) -> str:
    from equipoise.compare.grid import Combination

    return Combination(name, Recipe()).slug


def summary(result: dict[str, Any], clock: str) -> dict[str, Any]:
    """Seconds to the target, and where they went on the average worker."""
    workers = result["workers"]
    spent = {kind: statistics.mean(row[kind] for row in workers) for kind in ("compute", "wait", "communicate")}
    reached = result["reached"]
    return {
        "seconds": reached[clock] if reached else None,
        "steps": result["steps"],
        "rounds": result["rounds"],
        "bytes": result["bytes"],
        **{kind: round(seconds, 4) for kind, seconds in spent.items()},
    }


def predict(case: Case, folder: Path, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    rows: dict[str, list[dict[str, Any]]] = {}
    found = load(folder / "search.json")
    for choice, table in found["choices"].items():
        table["budget"] = f"{LONGEST * found['seconds']:.3f}s"
        for seed in range(FIRST_SEED, FIRST_SEED + args.seeds):
            recipe = {**table, "seed": seed, "virtual": True, "cluster": str(folder / "cluster.toml")}
            job, how = assemble(Recipe.from_dict(recipe))
            job.quiet = True
            rows.setdefault(choice, []).append(summary(run_job(job, **how).result, "simulated_seconds"))
    keep(folder / "predicted.json", rows)


class Paced(nn.Module):
    """A model whose batches take as long as on a machine of this rate: it sleeps when the last gradient is there.

    rest: seconds of a step outside of the forward and backward passes, without communication.
    """

    def __init__(self, model: nn.Module, rate: float, rest: float):
        super().__init__()
        self.model, self.rate, self.rest, self.due, self.missing = model, rate, rest, 0.0, 0
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.accumulated)

    def forward(self, x: torch.Tensor) -> Any:
        if self.training and torch.is_grad_enabled():
            self.due = time.perf_counter() + len(x) / self.rate - self.rest
            self.missing = sum(1 for _ in self.model.parameters())
        return self.model(x)

    def accumulated(self, parameter: torch.Tensor) -> None:
        self.missing -= 1
        if self.missing == 0:
            time.sleep(max(0.0, self.due - time.perf_counter()))


def trained(table: dict[str, Any], rate: float, rest: float) -> dict[str, Any]:
    job, how = assemble(Recipe.from_dict({**table, "workers": WORKERS, "virtual": False}))
    build = job.model
    job.model, job.quiet, job.folder = lambda: Paced(build(), rate, rest), True, None
    return run_job(job, **{**how, "virtual": False, "cluster": None}).result


def worker(path: str, rates: list[float]) -> None:
    """One real process: all choices and seeds, until the target; keeps where the time went."""
    torch.set_num_threads(1)
    rank, rest, todo = int(os.environ["RANK"]), 0.0, json.loads(Path(path).read_text())
    alone = {key: todo[0][1][key] for key in ("data", "model", "optimizer", "lr", "momentum")}
    alone |= {"sync": "none", "steps": STEPS_ALONE, "evaluate_every": 1e6}
    for _ in range(2):  # the first time opens connections and touches memory
        row = trained(alone, rates[rank], rest)["workers"][rank]
        rest += (row["seconds"] - row["samples"] / rates[rank]) / row["steps"]
    missed = set()
    for choice, table in todo:
        if choice in missed:
            continue
        began = time.monotonic()
        result = trained(table, rates[rank], rest)
        missed |= {choice} if result["reached"] is None else set()
        if rank == 0:
            row = {**summary(result, "seconds"), "wall": round(time.monotonic() - began, 2), "rest": round(rest, 5)}
            with Path(path).with_name("real.jsonl").open("a") as file:
                file.write(json.dumps([choice, table["seed"], row]) + "\n")


def lost(rows: dict[int, dict[str, Any]]) -> bool:
    """Has one of its seeds missed the target in time?"""
    return any(row["seconds"] is None for row in rows.values())


def real(case: Case, folder: Path, args: argparse.Namespace) -> None:
    """Runs what is missing."""
    rows, found = measured_in(folder), load(folder / "search.json")
    limit = {"budget": f"{LONGEST * found['seconds']:.3f}s"}
    missing = [
        (choice, {**table, **limit, "seed": seed})
        for seed in range(FIRST_SEED, FIRST_SEED + args.seeds)
        for choice, table in found["choices"].items()
        if seed not in rows.get(choice, {}) and not lost(rows.get(choice, {}))
    ]
    if not missing:
        return
    (folder / "todo.json").write_text(json.dumps(missing))
    namespaces.remove(WORKERS)
    try:
        namespaces.make(WORKERS, case.rate)
        extra = ["worker", "--todo", str((folder / "todo.json").resolve()), "--cases", str(CASES.index(case))]
        namespaces.measure(os.path.abspath(__file__), extra, WORKERS)
    finally:
        namespaces.remove(WORKERS)


def measured_in(folder: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """Real runs by choice and seed."""
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    path = folder / "real.jsonl"
    for line in path.read_text().splitlines() if path.is_file() else []:
        choice, seed, row = json.loads(line)
        rows.setdefault(choice, {})[seed] = row
    return rows


def outcome(folder: Path) -> dict[str, Any] | None:
    """What was found, predicted and measured in one case, with the seeds that all choices have; None before that."""
    if not all((folder / name).is_file() for name in ("search.json", "real.jsonl")):
        return None
    found, measured = load(folder / "search.json"), measured_in(folder)
    predicted = load(folder / "predicted.json") if (folder / "predicted.json").is_file() else {}
    ran = [{*measured.get(choice, {})} for choice in found["choices"] if not lost(measured.get(choice, {}))]
    seeds = sorted(set.intersection(*ran)) if ran else []
    if not seeds:
        return None
    rows = {}
    for choice in found["choices"]:
        own = measured[choice]
        used = [seed for seed in seeds if seed in own] if not lost(own) else sorted(own)
        simulated = predicted.get(choice, [])
        runs = [simulated[s - FIRST_SEED] for s in used if s - FIRST_SEED < len(simulated)]
        rows[choice] = {
            "predicted": [one["seconds"] for one in runs],
            "real": [own[seed]["seconds"] for seed in used],
            "steps": [[one["steps"] for one in runs], [own[seed]["steps"] for seed in used]],
        }
    about = {name: found[name] for name in ("runs", "seconds", "interval")}
    return {**about, "first": next(iter(rows)), "choices": rows}


def mean(seconds: list[float | None]) -> float:
    return float("inf") if None in seconds else statistics.mean(s for s in seconds if s is not None)


def table(out: Path, path: str | None) -> None:
    measured = {case.name: row for case in CASES if (row := outcome(out / case.slug)) is not None}
    good, ratios, inside, real_runs = 0, [], 0, 0
    for name, row in measured.items():
        seconds = {choice: mean(each["real"]) for choice, each in row["choices"].items()}
        ratio = seconds[row["first"]] / min(seconds.values())
        good += ratio <= MARGIN
        low, high = row["interval"]
        own = row["choices"][row["first"]]["real"]
        inside, real_runs = inside + sum(s is not None and low <= s <= high for s in own), real_runs + len(own)
        print(f"{name}: {row['first']}, {ratio:.2f} of the fastest{'' if ratio <= MARGIN else '  MISSED'}")
        print(f"    interval {low:.2f} to {high:.2f} s, real {own}")
        for choice, each in row["choices"].items():
            pairs = [(p, r) for p, r in zip(each["predicted"], each["real"], strict=False) if p and r]
            ratios += [p / r for p, r in pairs]
            shown = ", ".join(f"{p:.2f} / {r:.2f} = {p / r:.2f}" for p, r in pairs)
            print(f"    {choice:<60} {shown}   steps {each['steps']}")
    print(f"{good} of {len(measured)} first choices are the fastest or within 10 %; goal {GOAL} of {len(CASES)}")
    print(f"{inside} of {real_runs} real times of first choices lie in the interval, which should hold 80 %")
    if ratios:
        print(
            f"predicted / real, {len(ratios)} runs: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to "
            f"{max(ratios):.3f}"
        )
    if path:
        Path(path).write_text(json.dumps(measured, indent=1) + "\n")


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def keep(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["search", "predict", "real", "table", "worker"])
    parser.add_argument("--cases", help=f"numbers from 0 to {len(CASES) - 1}, with commas (all)")
    parser.add_argument("--minutes", type=float, default=30.0, help="of each search; it ends by itself after about 3")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time of each search")
    parser.add_argument("--seeds", type=int, default=2, help="of the real runs")
    parser.add_argument("--latency", default="0.1 ms", help="of the links, as the cluster files say")
    parser.add_argument("--out", default="plan_validation")
    parser.add_argument("--json", metavar="FILE", help="table: also write docs/measured/plan_validation.json")
    parser.add_argument("--todo", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.phase == "worker":
        worker(args.todo, CASES[int(args.cases)].rates)
    elif args.phase == "table":
        table(Path(args.out), args.json)
    else:
        run = {"search": search, "predict": predict, "real": real}[args.phase]
        numbers = [int(word) for word in args.cases.split(",")] if args.cases else range(len(CASES))
        for case in (CASES[number] for number in numbers):
            folder = Path(args.out) / case.slug
            folder.mkdir(parents=True, exist_ok=True)
            run(case, folder, args)
            print(f"{args.phase}: {case.name} done", flush=True)


if __name__ == "__main__":
    main()
