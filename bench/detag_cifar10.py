"""DeTAG's experiments at a small scale: CIFAR-10 on a ring, sorted by label and X % shuffled; slack and larger rings.

    python detag_cifar10.py --data-dir DIR --check        # the simulator against the library, a minute
    python detag_cifar10.py --data-dir DIR --part 0/2     # a half of the grid, twenty minutes of one core
    python detag_cifar10.py --data-dir DIR --model mlp    # all of it with a perceptron, five minutes
    python detag_cifar10.py --table FILE --draw PICTURE   # docs/measured/detag.json, with the parts on top

A LeNet with strides or a ResNet-8 with GroupNorm on images averaged to 16 x 16, or a perceptron on 8 x 8. Every method
takes the best of five learning rates by the mean model's training loss at the end with seed 0, and two more seeds at
that rate, or at the next best if one of these diverges. While the best is the lowest or the highest of those tried, the
next one beyond is tried too; D2 and DSGT begin two rates lower where one round mixes little, and with
momentum. All take the same number of examples; the files also have the rounds, and the vectors that a worker
sends to each neighbour per step. See `gossip_simulator.py` for how it runs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import gossip_simulator as sim
import numpy as np
import torch
from torch import nn
from torch.nn.functional import avg_pool2d

import equipoise as eq
from equipoise.data import CIFAR10
from equipoise.simulate.cluster import Cluster, Link, Traffic

SETTINGS = {  # by name: workers, part shuffled, slack, momentum
    "0 % shuffled": (8, 0.0, 1.0, 0.0),
    "25 % shuffled": (8, 0.25, 1.0, 0.0),
    "50 % shuffled": (8, 0.5, 1.0, 0.0),
    "100 % shuffled": (8, 1.0, 1.0, 0.0),
    "slack 0.1": (8, 0.0, 0.1, 0.0),
    "slack 0.05": (8, 0.0, 0.05, 0.0),
    "slack 0.01": (8, 0.0, 0.01, 0.0),
    "16 workers": (16, 0.0, 1.0, 0.0),
    "16 workers and 25 % shuffled": (16, 0.25, 1.0, 0.0),
    "16 workers and 50 % shuffled": (16, 0.5, 1.0, 0.0),
    "16 workers and slack 0.1": (16, 0.0, 0.1, 0.0),
    "momentum 0.9": (8, 0.0, 1.0, 0.9),
}
RIVALS = ("D-PSGD", "D2", "DSGT")
EVERYWHERE = (*RIVALS, "DeTAG")
VARIANTS = (  # where --variants asks for them
    "all-reduce",
    "DeTAG, one round",
    "DeTAG, period R",
    "DeTAG, period 2R",
    "DeTAG, R + 1 rounds, period 8",
    "DeTAG, frozen",
)
RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
FIRST = slice(2, 7)  # of these; the others while the best is at an end
SEEDS = (0, 1, 2)
LINKS = {name: Link(name, latency) for name, latency in (("10 Gbit", 1e-4), ("1 Gbit", 1e-4), ("100 Mbit", 1e-3))}


def load(folder: str, examples: int, network: Any) -> tuple[torch.Tensor, torch.Tensor]:
    train = CIFAR10(dir=folder, limit=examples, test_limit=10).load().train
    return avg_pool2d(train.x, 32 // network.side), train.y


def blocks_of(labels: torch.Tensor, workers: int, shuffled: float, seed: int) -> list[np.ndarray]:
    """As the partition `sorted` makes them, in equal number."""
    ranked = np.argsort(labels.numpy(), kind="stable")
    count = round(shuffled * len(labels))
    ranked[:count] = np.random.default_rng([seed, 0]).permutation(ranked[:count])
    return [block[: len(labels) // workers] for block in np.array_split(ranked, workers)]


def one_setting(name: str, data: tuple[torch.Tensor, torch.Tensor], args: argparse.Namespace) -> None:
    """All methods in one setting, a file each: the curves at the best rate, and the final losses of all rates."""
    workers, shuffled, slack, momentum = SETTINGS[name]
    graph = eq.topology.Ring(slack=slack).on(workers)
    chosen = sim.methods(graph, momentum)
    rates = [round(rate * (1 - momentum) * 2, 4) if momentum else rate for rate in RATES]
    measure = torch.from_numpy(np.random.default_rng(0).permutation(len(data[1]))[: args.measured])
    for method in (*EVERYWHERE, *VARIANTS) if args.variants else EVERYWHERE:
        make = chosen[method][0]
        file = Path(args.out) / f"{name}, {method}.json".replace(" ", "-").replace("%", "percent")
        row = json.loads(file.read_text()) if file.exists() else args.known.get((name, method), {})
        ends = {float(rate): end for rate, end in row.get("rates", {}).items()}
        curves = {row["rate"]: dict(enumerate(row["curves"]))} if row else {}  # by rate and seed

        def run(seed: int, rates: list[float], make: Any = make) -> list[list[float]]:
            """The curve of each rate."""
            if time.monotonic() > args.stop:
                sys.exit(f"not all of it in {args.minutes} minutes: the same command goes on")
            blocks = blocks_of(data[1], workers, shuffled, seed)
            given = {"batch": args.batch, "steps": args.steps, "seed": seed, "every": args.steps // 20}
            curve = sim.simulate(sim.NETWORKS[args.model], make, data, blocks, rates, measure=measure, **given)[1]
            return [[round(losses[column], 4) for losses in curve] for column in range(len(rates))]

        started = time.process_time()
        while missing := untried(ends, rates, rates[first_rates(method, workers, slack, momentum)]):
            curves |= {rate: {0: curve} for rate, curve in zip(missing, run(0, missing), strict=True)}
            ends |= {rate: curves[rate][0][-1] for rate in missing}
        for best in sorted(ends, key=lambda rate, ends=ends: ends[rate]):
            own = curves.setdefault(best, {})
            own |= {seed: run(seed, [best])[0] for seed in SEEDS[: args.seeds] if seed not in own}
            if all(math.isfinite(curve[-1]) for curve in own.values()):
                break  # else the next best: with one of the seeds it diverges
        made, all_curves = make(), [own[seed] for seed in SEEDS[: args.seeds]]
        row = {"setting": name, "method": method, "rate": best, "rounds": made.rounds, "sent": made.sent}
        row |= {"curves": all_curves, "rates": {rate: ends[rate] for rate in sorted(ends)}}
        if json.loads(json.dumps(row)) == args.known.get((name, method)):
            continue
        file.write_text(json.dumps(row))
        finals = " ".join(f"{curve[-1]:.4f}" for curve in all_curves)
        took = time.process_time() - started
        print(f"{name:<16} {method:<16} rate {best:<6g} losses {finals}   {took:.0f} s", flush=True)


def first_rates(method: str, workers: int, slack: float, momentum: float) -> slice:
    """D2 and DSGT take smaller rates too where one round mixes little, and with momentum: else they may not learn."""
    hard = slack < 1 or workers > 8 or momentum > 0
    return slice(0, FIRST.stop) if method in ("D2", "DSGT") and hard else FIRST


def untried(ends: dict[float, float], rates: list[float], first: list[float]) -> list[float]:
    """Of the first rates; then the next one beyond, while the best is at an end."""
    if missing := [rate for rate in first if rate not in ends]:
        return missing
    best = min(ends, key=lambda rate: ends[rate])
    return [rate for rate in neighbours(best, rates) if rate not in ends][:1]


def neighbours(rate: float, rates: list[float]) -> list[float]:
    place = rates.index(rate)
    return rates[max(place - 1, 0) : place] + rates[place + 1 : place + 2]


def check(network: Any, data: tuple[torch.Tensor, torch.Tensor], images: torch.Tensor, steps: int = 24) -> None:
    """The mean model of the simulator and of `eq.train`, on the same batches; in float64, where no rounding grows."""
    images, data = images.double(), (data[0].double(), data[1])
    workers, batch, rate = 8, 8, 0.1
    graph = eq.topology.Ring(slack=0.1).on(workers)
    blocks = blocks_of(data[1], workers, 0.0, 0)
    assert len(blocks[0]) >= steps * batch, "within one epoch: the two end epochs differently"
    for name, (make, sync, period) in sim.methods(graph).items():
        x, _ = sim.simulate(
            network,
            make,
            data,
            blocks,
            [rate],
            batch=batch,
            steps=steps,
            seed=0,
            measure=torch.arange(1),
            every=steps,
            shuffle=False,
        )
        run = eq.train(
            lambda: network.module(0).double(),
            nn.CrossEntropyLoss(),
            (images, data[1]),
            optimizer=lambda p: torch.optim.SGD(p, lr=rate),
            workers=workers,
            steps=steps,
            batch=batch,
            partition=eq.partition.Sorted(),
            order=eq.order.Sequential(),
            sync=sync,
            period=period,
        )
        theirs = nn.utils.parameters_to_vector(run.model.parameters()).detach()
        moved = (theirs - nn.utils.parameters_to_vector(network.module(0).double().parameters())).norm()
        error = (x[0].mean(0) - theirs).norm() / moved
        print(f"  {name:<16} differs from the library by {error:.1e} of the distance moved", flush=True)
        assert error < 1e-9, name


def known(path: Path, model: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of an earlier table, by setting and method."""
    sections = json.loads(path.read_text()) if path.exists() else {}
    found = list(sections.get(model, {"settings": {}})["settings"].values())
    for row in (row for rows in found for row in rows):
        row.pop("seconds")
    return {(row["setting"], row["method"]): row for rows in found for row in rows}


def table(parts: list[Path], earlier: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    """By setting: final losses by seed, rates, rounds, vectors sent, and curves. Parts replace earlier rows."""
    found = [json.loads(path.read_text()) for path in parts]
    rows = list((earlier | {(row["setting"], row["method"]): row for row in found}).values())
    order = (VARIANTS[0], *EVERYWHERE, *VARIANTS[1:])
    rows.sort(key=lambda row: order.index(row["method"]))
    return {name: found for name in SETTINGS if complete(found := [row for row in rows if row["setting"] == name])}


def complete(rows: list[dict[str, Any]]) -> bool:
    return {row["method"] for row in rows} >= set(EVERYWHERE)


def seconds(row: dict[str, Any], parameters: int, batch: int) -> dict[str, float]:
    """Of a step on each kind of link: workers of 1,000 examples per second, the time model of described clusters."""
    workers = SETTINGS[row["setting"]][0]
    found = {}
    for name, link in LINKS.items():
        cluster = Cluster([1000.0] * workers, link)
        round = cluster.mean(4 * parameters)
        if row["method"] != "all-reduce":
            traffic, bytes = Traffic(cluster), round_bytes(row, parameters)
            sent = [dict.fromkeys(((rank - 1) % workers, (rank + 1) % workers), bytes) for rank in range(workers)]
            arrivals = [traffic.send(rank, 0.0, messages) for rank, messages in enumerate(sent)]
            round = max(time for each in arrivals for time in each.values())
        found[name] = cluster.compute(0, batch) + row["rounds"] * round
    return found


def round_bytes(row: dict[str, Any], parameters: int) -> int:
    return int(4 * parameters * row["sent"] / row["rounds"])


def draw(measured: dict[str, Any], steps: int, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    units = {"steps": lambda row: 1.0, "vectors sent to each neighbour": lambda row: row["sent"]}
    units["simulated seconds, 1 Gbit"] = lambda row: row["seconds"]["1 Gbit"]
    figure, axes = plt.subplots(3, len(measured), figsize=(3 * len(measured), 8), squeeze=False, sharey=True)
    for column, (name, rows) in enumerate(measured.items()):
        for plot, (label, per_step) in zip(axes[:, column], units.items(), strict=True):
            for entry in rows:
                loss = np.mean(entry["curves"], 0)
                at = np.linspace(0, steps, len(loss) + 1)[1:] * per_step(entry)
                plot.plot(at, loss, label=f"{entry['method']} ({entry['rate']:g})")
            plot.set_xlabel(label)
            plot.grid(alpha=0.3)
            if label != "steps":  # what the slowest of the rivals takes
                plot.set_xlim(0, max(steps * per_step(entry) for entry in rows if entry["method"] in RIVALS))
        axes[0][column].set_title(name)
        axes[0][column].legend(fontsize=6)
    axes[0][0].set_ylim(top=2.4)
    figure.supylabel("training loss of the mean model, mean of the seeds")
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--model", choices=tuple(sim.NETWORKS), default="lenet")
    parser.add_argument("--examples", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--measured", type=int, default=2000, help="training examples on which the loss is measured")
    parser.add_argument("--only", help="settings, separated by commas")
    parser.add_argument("--variants", action="store_true", help="also DeTAG's other variants, and all-reduce")
    parser.add_argument("--part", default="0/1", help="I/N: every N-th setting, from the I-th on")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing after so many")
    parser.add_argument("--out", default="detag-cifar10", help="folder of the parts")
    parser.add_argument("--check", action="store_true", help="compare the simulator with the library, nothing else")
    parser.add_argument("--table", metavar="FILE", help="gather the parts in one file")
    parser.add_argument("--known", metavar="FILE", help="rows of an earlier table that are not run again")
    parser.add_argument("--draw", metavar="PICTURE")
    args = parser.parse_args()
    args.stop = time.monotonic() + 60 * args.minutes
    args.known = known(Path(args.table or args.known), args.model) if args.table or args.known else {}
    out = Path(args.out)
    if args.table or args.draw:
        measured = table(sorted(out.glob("*.json")), args.known)
        size = sum(p.numel() for p in sim.NETWORKS[args.model].module(0).parameters())
        for row in (row for rows in measured.values() for row in rows):
            row["seconds"] = seconds(row, size, args.batch)
        if args.draw:
            names = args.only.split(",") if args.only else list(measured)
            draw(
                {name: [row for row in measured[name] if row["method"] in EVERYWHERE] for name in names},
                args.steps,
                args.draw,
            )
        if args.table:  # for docs/make_tables.py: one section for each network, those of other runs are kept
            path = Path(args.table)
            sections = json.loads(path.read_text()) if path.exists() else {}
            about = {"steps": args.steps, "parameters": size}
            path.write_text(json.dumps(sections | {args.model: about | {"settings": measured}}) + "\n")
        return
    torch.set_num_threads(1)
    network = sim.NETWORKS[args.model]
    images, labels = load(args.data_dir, args.examples, network)
    data = network.inputs(images), labels
    if args.check:
        check(network, data, images)
        return
    out.mkdir(parents=True, exist_ok=True)
    part, parts = map(int, args.part.split("/"))
    names = args.only.split(",") if args.only else list(SETTINGS)[part::parts]
    for name in names:
        one_setting(name, data, args)


if __name__ == "__main__":
    main()
