"""How much of the work is kept when workers fail? Elastic, waiting for the repair, and restarting from a checkpoint.

    python bench/goodput.py --hours 1 --seeds 1

Ten virtual workers of a described cluster fail four times an hour each, for two minutes: each is there for 88 % of the
time, and all ten for 28 % of it. All policies meet the same failures. Goodput is the number of examples that count per
simulated second, relative to the same run without failures.

    elastic   the others go on, and the worker is let in again when it is repaired
    waiting   everybody waits until it is repaired; nothing is lost but time
    restart   everybody stops, waits until all are there, and goes on from the last checkpoint
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import equipoise as eq
from equipoise.checkpoint.store import read_manifest, read_worker
from equipoise.comm.membership import Elasticity
from equipoise.simulate.failures import FailureModel

WORKERS, RATE, BATCH = 10, 100.0, 100  # a step takes a second
RESTART = 10.0  # seconds to start all processes again and to load the checkpoint
CHECKPOINT = 60  # steps between checkpoints, which cost no time here
SNAPSHOTS = 4  # steps between them, where every step has a round
CHOICES: dict[str, dict[str, Any]] = {
    "all-reduce": {"sync": eq.sync.AllReduce(), "period": 1},
    "periodic-average, period 8": {"sync": eq.sync.PeriodicAverage(), "period": 8},
    "diloco, period 32": {"sync": eq.sync.DiLoCo(), "period": 32},
}
X = torch.randn(5000, 8, generator=torch.Generator().manual_seed(0))
DATA = X, X.sum(1, keepdim=True)


def cluster(failures_per_hour: float) -> eq.Cluster:
    links = eq.Link("1 Gbit", "1 ms")
    return eq.Cluster([RATE] * WORKERS, links, failures_per_hour=failures_per_hour, repair=120.0, detection=1.0)


def train(choice: str, seconds: float, failures: float, seed: int, **more: Any) -> dict[str, Any]:
    how: dict[str, Any] = {"workers": WORKERS, "batch": BATCH, "partition": eq.partition.Queue(), "seed": seed}
    how |= {"cluster": cluster(failures), "budget": seconds, "evaluate_every": math.inf, "log_every": 1000}
    torch.manual_seed(0)
    return eq.train(nn.Linear(8, 1), nn.MSELoss(), DATA, **how, **CHOICES[choice], **more).result


def restarted(choice: str, seconds: float, failures: float, seed: int) -> float:
    """Examples that count when every failure stops all workers: pieces of one run, each resumed from a checkpoint."""
    models = [FailureModel(cluster(failures), worker, seed) for worker in range(WORKERS)]
    outages = sorted(spell for model in models for spell in model.outages(0.0, seconds))
    with tempfile.TemporaryDirectory() as folder:
        now, samples = 0.0, 0  # in all, and as far as the last checkpoint goes
        simulated, resume = 0.0, 0  # of the run's own clock, and the step of that checkpoint
        while now < seconds:
            stop = min([seconds, *(spell.start for spell in outages if spell.start > now)])
            more = {"out": folder, "checkpoint_every": CHECKPOINT, "keep": 4, "resume": resume or False}
            if resume == 0:
                folder = str(Path(folder) / "again")  # nothing was saved yet: begin anew
                more["out"] = folder
            result = train(choice, simulated + stop - now, 0.0, seed, **more)
            if stop == seconds:
                return float(result["samples"])
            resume = result["steps"] // CHECKPOINT * CHECKPOINT
            if resume:
                path = Path(folder) / "checkpoints" / f"step-{resume}"
                manifest = read_manifest(path)
                states = [read_worker(path, manifest, worker) for worker in range(WORKERS)]
                simulated, samples = states[0]["now"], sum(state["clock"]["samples"] for state in states)
            now = stop
            while away := [spell.end for spell in outages if spell.start <= now < spell.end]:
                now = max(away)
            now += RESTART
            # A failure while all are being started stops them again.
            while away := [spell.end for spell in outages if now - RESTART < spell.start <= now]:
                now = max(away) + RESTART
        return float(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0, help="simulated")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--failures", type=float, default=4.0, help="per hour and worker")
    parser.add_argument(
        "--json", metavar="FILE", help="also write {choice: {policy: part of the goodput that is kept}}"
    )
    arguments = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    seconds = 3600.0 * arguments.hours
    print("| goodput, % of a run without failures | elastic | waiting | restart |")
    print("|---|---|---|---|")
    for choice in CHOICES:
        kept: dict[str, list[float]] = {"elastic": [], "waiting": [], "restart": []}
        lost, dropped = 0, 0
        for seed in range(arguments.seeds):
            undisturbed = train(choice, 300.0, 0.0, seed)
            rate = undisturbed["samples"] / undisturbed["simulated_seconds"]
            elastic = Elasticity(1, WORKERS, snapshot_every=SNAPSHOTS)
            result = train(choice, seconds, arguments.failures, seed, elastic=elastic)
            kept["elastic"].append(result["samples"] / result["simulated_seconds"] / rate)
            lost += sum(len(change["lost"]) for change in result["membership"])
            dropped += sum(change["dropped"]["samples"] for change in result["membership"])
            result = train(choice, seconds, arguments.failures, seed)
            kept["waiting"].append(result["samples"] / result["simulated_seconds"] / rate)
            kept["restart"].append(restarted(choice, seconds, arguments.failures, seed) / seconds / rate)
        found[choice] = {policy: round(statistics.fmean(values), 4) for policy, values in kept.items()}
        cells = " | ".join(f"{100 * value:.1f}" for value in found[choice].values())
        print(f"| {choice} | {cells} |  {lost} losses, {dropped:,} examples trained again", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
