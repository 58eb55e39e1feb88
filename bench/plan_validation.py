"""Is the first choice of `equipoise plan` the fastest on real processes?

    sudo python plan_validation.py --minutes 1.5 --out plan_validation [--cases 10]

For each case: a cluster file (4 workers, links of 100 Mbit or 1 Gbit, equal speeds or 1:1:2:4) and a model; the search;
then its finalists and float32 all-reduce on real processes, one per network namespace (namespaces.py), until the
target. A worker of R examples per second sleeps so that a batch of b takes b / R seconds: two cores then stand for four
machines. The first choice should be the fastest, or within 10 % of it, in 8 of 10 cases.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import namespaces
import torch
from torch import nn

from equipoise.config.recipe import Recipe
from equipoise.loop.from_recipe import assemble
from equipoise.loop.train import prepare, run_job

WORKERS, RATE = 4, 400.0  # examples per second at speed 1
SPEEDS = {"equal": (1, 1, 1, 1), "1:1:2:4": (1, 1, 2, 4)}
LINKS = {"100mbit": "100 Mbit", "1gbit": "1 Gbit"}
MODELS = {"small": "[128]", "large": "[1000, 230]", "deep": "[512, 512]"}
CASES = [(rate, speeds, model) for model in MODELS for rate in LINKS for speeds in SPEEDS][:10]
GOAL = 8


def cluster_file(path: Path, rate: str, speeds: str) -> None:
    rows = "".join(f"[[workers]]\nexamples_per_second = {RATE * speed}\n" for speed in SPEEDS[speeds])
    path.write_text(f'{rows}[links]\nbandwidth = "{LINKS[rate]}"\nlatency = "0.2 ms"\n')


def search(folder: Path, model: str, args: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "equipoise", "plan", "--cluster", str(folder / "cluster.toml"), "--data", "digits"]
    command += ["--model", "mlp", "--model.hidden", MODELS[model], "--until", f"accuracy={args.target}"]
    command += ["--minutes", str(args.minutes), "--seeds", "2", "--quiet", "--out", str(folder / "plan")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads((folder / "plan" / "plan.json").read_text())
    return found


def recipes(folder: Path, found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of the finalists, and of plain all-reduce at the learning rate of the first one."""
    by_name = {}
    for row in found["finals"]:
        slug = row["choice"].replace(", ", "-").replace(" ", "-")
        path = next((folder / "plan" / "runs").glob(f"{slug}/finals-seed-0/recipe.toml"))
        by_name[row["choice"]] = Recipe.load(path).without("cluster", "virtual", "budget", "out").table()
    first = next(iter(by_name.values()))
    plain = Recipe.from_dict({k: v for k, v in first.items() if k not in ("sync", "period", "wire", "topology")})
    by_name["all-reduce, float32"] = plain.merged({"sync": "all-reduce", "period": 1}).table()
    return by_name


class Paced(nn.Module):
    """A model whose batches take as long as on a machine of this rate."""

    def __init__(self, model: nn.Module, rate: float):
        super().__init__()
        self.model, self.rate, self.due = model, rate, 0.0

    def forward(self, x: torch.Tensor) -> Any:
        if self.training:
            time.sleep(max(0.0, len(x) / self.rate - 0.002))  # the computation itself takes about 2 ms
        return self.model(x)


def worker(path: str, speeds: str) -> None:
    """One real process: train until the target, and print the seconds."""
    torch.set_num_threads(1)
    content = json.loads(Path(path).read_text())
    job, how = assemble(Recipe.from_dict(content))
    build, rate = job.model, RATE * SPEEDS[speeds][int(os.environ["RANK"])]
    job.model, job.quiet, job.folder = lambda: Paced(build(), rate), True, None
    prepare(job, False)
    result = run_job(job, **{**how, "virtual": False, "cluster": None}).result
    if os.environ["RANK"] == "0":
        print(json.dumps(result["reached"]["seconds"] if result["reached"] else None))


def measured(folder: Path, rate: str, speeds: str, table: dict[str, Any], seeds: int) -> float | None:
    """Mean seconds over the seeds; None if one of them misses the target."""
    seconds = []
    for seed in range(seeds):
        path = folder / "real.json"
        path.write_text(json.dumps({**table, "seed": seed, "workers": WORKERS, "virtual": False}))
        namespaces.remove(WORKERS)
        try:
            namespaces.make(WORKERS, rate)
            text = namespaces.measure(os.path.abspath(__file__), ["--worker", str(path), "--speeds", speeds], WORKERS)
        finally:
            namespaces.remove(WORKERS)
        seconds.append(json.loads(text.strip().splitlines()[-1]))
    return None if None in seconds else sum(seconds) / len(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--speeds", help=argparse.SUPPRESS)
    parser.add_argument("--minutes", type=float, default=1.5, help="of each search")
    parser.add_argument("--target", type=float, default=0.93)
    parser.add_argument("--cases", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=2, help="of the real runs")
    parser.add_argument("--out", default="plan_validation")
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.speeds)
        return
    out = Path(args.out)
    rows = json.loads((out / "rows.json").read_text()) if (out / "rows.json").is_file() else {}
    for rate, speeds, model in CASES[: args.cases]:
        name = f"{rate} {speeds} {model}"
        folder = out / name.replace(" ", "-").replace(":", "")
        folder.mkdir(parents=True, exist_ok=True)
        if name not in rows:
            cluster_file(folder / "cluster.toml", rate, speeds)
            found = search(folder, model, args)
            predicted = {row["choice"]: row["mean"] for row in found["finals"]}
            real = {
                choice: measured(folder, rate, speeds, table, args.seeds)
                for choice, table in recipes(folder, found).items()
            }
            rows[name] = {"first": found["finals"][0]["choice"], "predicted": predicted, "real": real}
            (out / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")
        row = rows[name]
        best = min(seconds for seconds in row["real"].values() if seconds is not None)
        own = row["real"][row["first"]]
        ratio = own / best if own is not None else float("inf")
        print(f"{name}: {row['first']}, {ratio:.2f} of the fastest {'ok' if ratio <= 1.1 else 'NOT'}", flush=True)
        for choice, seconds in row["real"].items():
            print(f"    {choice}: real {seconds}, predicted {row['predicted'].get(choice)}", flush=True)
    good = sum(
        (own := row["real"][row["first"]]) is not None and own <= 1.1 * min(s for s in row["real"].values() if s)
        for row in rows.values()
    )
    print(f"{good} of {len(rows)} first choices are the fastest or within 10 %; goal {GOAL} of 10")


if __name__ == "__main__":
    main()
