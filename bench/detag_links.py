"""What DeTAG's rounds and period from the links gain: simulated seconds to a target on digits sorted by label.

    python detag_links.py --table ../docs/measured/detag_links.json     # five minutes of one core

A ring of 16 workers of 1,000 examples per second, batch 8, three kinds of links. Rounds and period from the links, as
`train` and `compare` choose them, against the rounds of the graph after every step and one round after every step.
Every choice takes the best of its rates by the seconds with seed 0, and two more seeds at that rate.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import torch

from equipoise.config.recipe import Recipe
from equipoise.core.errors import NonFinite
from equipoise.loop.from_recipe import assemble, settled
from equipoise.loop.train import run_job
from equipoise.simulate.cluster import Cluster, Link

LINKS = {"1 Gbit": Link(1e9, 1e-4), "100 Mbit": Link(1e8, 1e-3), "10 Mbit": Link(1e7, 1e-3)}
CHOICES: dict[str, dict[str, Any]] = {
    "R and H from the links": {},
    "R from the graph": {"sync": {"name": "detag", "rounds": 4}, "period": 1},
    "one round": {"sync": {"name": "detag", "rounds": 1}, "period": 1},
}
RATES = (0.05, 0.1, 0.2, 0.4, 0.8)
SEEDS = (0, 1, 2)
TARGET, EPOCHS, WORKERS = 0.3, 80, 16


def recipe_of(choice: dict[str, Any], cluster: Path, rate: float, seed: int) -> Recipe:
    given = {"data": "digits", "partition": "sorted", "workers": WORKERS, "batch": 8, "sync": "detag", "lr": rate}
    given |= {"cluster": str(cluster), "seed": seed, "until": f"loss={TARGET}", "epochs": EPOCHS, "evaluate_every": 0.5}
    return settled(Recipe.from_dict(given).merged(choice))


def seconds(recipe: Recipe) -> float:
    """Until the mean model has the target; infinite if it never has, or diverges."""
    job, how = assemble(recipe)
    job.quiet = True
    try:
        reached = run_job(job, **how).result["reached"]
    except NonFinite:
        return math.inf
    return round(float(reached["simulated_seconds"]), 3) if reached is not None else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", required=True, metavar="FILE", help="what is in it already is not run again")
    path = Path(parser.parse_args().table)
    torch.set_num_threads(1)
    rows = json.loads(path.read_text()) if path.exists() else []
    done = {(row["links"], row["choice"]) for row in rows}
    # By R and H, rate and seconds: which rate is best, or that none reaches the target, does not depend on links.
    best: dict[tuple[int, int], tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for links, link in LINKS.items():
            cluster = Path(folder) / f"{links}.toml"
            Cluster([1000.0] * WORKERS, link).save(cluster)
            for name, choice in CHOICES.items():
                if (links, name) in done:
                    continue
                plain = recipe_of(choice, cluster, RATES[0], 0).resolved()
                pair = plain["sync"]["rounds"], plain["period"]["steps"]
                if pair not in best:
                    tried = {rate: seconds(recipe_of(choice, cluster, rate, 0)) for rate in RATES}
                    best[pair] = min((took, rate) for rate, took in tried.items())[::-1]
                    print(links, name, tried, flush=True)
                rate, took = best[pair]
                found = [math.inf] * len(SEEDS)
                if math.isfinite(took):
                    found = [seconds(recipe_of(choice, cluster, rate, seed)) for seed in SEEDS]
                row = {"links": links, "choice": name, "rounds": pair[0], "period": pair[1], "rate": rate}
                rows.append(row | {"seconds": found})
                print(rows[-1], flush=True)
                path.write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
