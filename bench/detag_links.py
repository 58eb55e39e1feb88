"""What DeTAG's rounds and period from the links gain: simulated seconds to a target on CIFAR-10 sorted by label.

    python detag_links.py --data-dir DIR --table ../docs/measured/detag_links.json     # three minutes of one core

The perceptron of `gossip_simulator.py` on rings of 8 and 16 workers of 1,000 examples per second, batch 8, three kinds
of links. Rounds and period from the links, as `train` and `compare` choose them, against the rounds of the graph after
every step and one round after every step. Every pair of R and H takes the best of five rates by the steps to the target
with seed 0, and two more seeds at that rate. The steps do not depend on the links, so each pair runs once for all.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import detag_cifar10 as cifar
import gossip_simulator as sim
import numpy as np
import torch

import equipoise as eq
from equipoise.simulate.cluster import Cluster, Link, Traffic
from equipoise.sync.accelerated import FITTED, GossipPlan

LINKS = {"1 Gbit": Link(1e9, 1e-4), "100 Mbit": Link(1e8, 1e-3), "10 Mbit": Link(1e7, 1e-3)}
RATES = [0.02, 0.05, 0.1, 0.2, 0.4]
SEEDS = (0, 1, 2)
TARGET, STEPS, BATCH, EVERY, PARAMETERS = 1.6, 2000, 8, 20, 6506


def round_seconds(workers: int, link: Link) -> float:
    """Of one message of two vectors to both neighbours."""
    traffic = Traffic(Cluster([1000.0] * workers, link))
    sent = [dict.fromkeys(((r - 1) % workers, (r + 1) % workers), 2 * 4 * PARAMETERS) for r in range(workers)]
    return max(t for rank, messages in enumerate(sent) for t in traffic.send(rank, 0.0, messages).values())


def steps_to_target(pair: tuple[int, int], workers: int, data: Any) -> dict[str, Any]:
    """The best rate, and the steps by seed; infinite where the target was not reached."""
    (rounds, period), graph = pair, eq.topology.Ring().on(workers)
    gossip = sim.rounds_matrix(graph.matrix(), GossipPlan.make(graph, FITTED, rounds, "DeTAG"))
    measure = torch.from_numpy(np.random.default_rng(0).permutation(len(data[1]))[:2000])

    def run(seed: int, rates: list[float]) -> list[float]:
        _, curve = sim.simulate(
            sim.Perceptron,
            lambda: sim.LocalSteps(gossip, rounds / period, 2, length=period),
            data,
            cifar.blocks_of(data[1], workers, 0.0, seed),
            rates,
            batch=BATCH,
            steps=STEPS,
            seed=seed,
            measure=measure,
            every=EVERY,
        )
        reached = [[(t + 1) * EVERY for t, row in enumerate(curve) if row[k] <= TARGET] for k in range(len(rates))]
        return [float(found[0]) if found else math.inf for found in reached]

    tried = dict(zip(RATES, run(0, RATES), strict=True))
    rate = min(tried, key=lambda rate: tried[rate])
    return {"rate": rate, "steps": [tried[rate], *(run(seed, [rate])[0] for seed in SEEDS[1:])]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--table", required=True, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = cifar.load(args.data_dir, 8000, sim.Perceptron)
    data, step = (sim.Perceptron.inputs(images), labels), BATCH / 1000.0
    ran: dict[tuple[int, tuple[int, int]], dict[str, Any]] = {}
    rows = []
    for workers in (8, 16):
        for links, link in LINKS.items():
            each = round_seconds(workers, link)
            chosen, by_graph = (eq.sync.DeTAG().suit(workers, step, seconds) for seconds in (each, 0.0))
            assert chosen is not None
            assert by_graph is not None
            pairs = {"from the links": chosen, "R from the graph, H 1": by_graph, "R 1, H 1": ({"rounds": 1}, 1)}
            for name, (options, period) in pairs.items():
                pair = (options["rounds"], period)
                if (workers, pair) not in ran:
                    ran[workers, pair] = steps_to_target(pair, workers, data)
                    print(workers, pair, ran[workers, pair], flush=True)
                found = ran[workers, pair]
                seconds = [round(steps * (step + pair[0] / pair[1] * each), 3) for steps in found["steps"]]
                row = {"workers": workers, "links": links, "choice": name, "rounds": pair[0], "period": period}
                rows.append(row | {"rate": found["rate"], "seconds": seconds})
    Path(args.table).write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
