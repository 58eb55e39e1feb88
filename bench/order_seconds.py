"""Do balanced orders pay in seconds? Training loss at equal epochs and at equal seconds, several seeds.

    python order_seconds.py --data-dir DIR --table FILE --tune          # a rate for every order, by seed 10
    python order_seconds.py --data-dir DIR --table FILE --task lstm --again 0.5 0.7 1     # and by seed 11
    python order_seconds.py --data-dir DIR --table FILE                 # convex, lenet and lstm, seeds 0, 1, 2
    python order_seconds.py --data-dir DIR --table FILE --task lenet --seeds 1 --orders D-RR flip-flop
    python order_seconds.py --data-dir DIR --table FILE --task lenet-long --tune --orders D-RR CD-GraB

Tasks: the convex problem of order_convergence.py, and LeNet on CIFAR-10 and the LSTM on WikiText-2 of order_curves.py,
with fewer examples in a step (`REGIMES`); `lenet-short` and `lenet-long` have half the images, and fewer and more
epochs, `lenet-decay` also three times the weight decay, `lstm-long` more epochs. 4 virtual workers, a constant learning
rate. Every run adds its loss after each epoch to FILE; a run that is there is not repeated. Its result is the mean over
the last quarter of the epochs. `--tune` runs every order with three or five rates, and with the next one beyond while
the best is at an end; `--again` tries the best few by a second seed, since one may choose badly. The other runs then
have each order's best rate (without tuning, the middle one). Seconds are epochs times the cost of a step in a learned
epoch, which order_cost.py measures on a quiet machine at these batch sizes, so that the load of this machine does not
matter. With a cost of 1.04 and every second epoch learned from, 50 epochs pay for 51 of random reshuffling. Other
options of CD-GraB: an order that is a JSON object, such as '{"signal": "projection", "every": 5}'.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import order_convergence
import order_curves
import torch
from torch import nn

from equipoise.data import CIFAR10
from equipoise.order import CDGraB, FlipFlop, Order, PairedReversal, Reshuffle
from equipoise.reproduce.joined import Joined

WORKERS, SEEDS = 4, 3
EPOCHS = {
    "convex": 20,
    "lenet": 40,
    "lstm": 16,
    "lenet-short": 16,
    "lenet-long": 160,
    "lenet-decay": 48,
    "lstm-long": 32,
}
RATES = {
    "convex": (0.25, 0.5, 1.0),
    "lenet": (0.0007, 0.001, 0.0014, 0.002, 0.0028),
    "lstm": (0.35, 0.5, 0.7, 1.0, 1.4),
    "lenet-short": (0.002, 0.004, 0.008),
    "lenet-long": (0.001, 0.002, 0.004),
    "lenet-decay": (0.001, 0.002, 0.004),
    "lstm-long": (0.25, 0.5, 1.0),
}
TUNING = {"tuning": 10, "tuning again": 11}  # seeds that are not reported
ORDERS: dict[str, Callable[[], Order]] = {
    "D-RR": Reshuffle,
    "CD-GraB": CDGraB,
    "flip-flop": FlipFlop,
    "paired reversal": PairedReversal,
    "CD-GraB, every epoch, exact": lambda: CDGraB(signal="exact"),
    "CD-GraB, every epoch, projection": lambda: CDGraB(signal="projection", every=1, sweeps=1),
}
# One or two examples per worker and step, and the weight decay of the first GraB paper. With it LeNet still fits so few
# images, only later: then gradients have no noise left. With three times as much it does not.
_LENET = order_curves.TASKS["lenet"]._replace(together=8, decay=0.01)
_FEW = _LENET._replace(load=lambda where, full: CIFAR10(dir=str(where), limit=1024, test_limit=16).load())
REGIMES = {
    "lenet": _LENET._replace(load=lambda where, full: CIFAR10(dir=str(where), limit=2048, test_limit=16).load()),
    **dict.fromkeys(("lenet-short", "lenet-long"), _FEW),
    "lenet-decay": _FEW._replace(decay=0.03),
    **dict.fromkeys(
        ("lstm", "lstm-long"),
        order_curves.TASKS["lstm"]._replace(
            load=lambda where, full: order_curves.wikitext(where, 4000, 1024), together=4
        ),
    ),
}


class Curve(NamedTuple):
    losses: list[float]  # after every epoch; convex: minus the optimum
    learned: int  # epochs that the order was learned from


def curve(task: str, order: Order, lr: float, folder: Path, seed: int) -> Curve:
    if task == "convex":
        x, y = order_convergence.problem(str(folder) if list(folder.glob("*idx3*")) else None)
        best = order_convergence.optimum(x, y)
        points = order_convergence.curve(order, x, y, best, lr, seed, lambda done: len(done) >= EPOCHS[task])
        return Curve([gap for _, gap in points], 0)
    of = REGIMES[task]
    data = of.load(folder, False)
    losses: list[float] = []
    learned: list[bool] = []

    def build() -> nn.Module:
        torch.manual_seed(seed)
        return of.model.build(data)

    def after_epoch(model: nn.Module, learning: bool) -> None:
        losses.append(order_curves.measure(of, model, data.train, of.measured)[0])
        learned.append(learning)

    sgd = partial(torch.optim.SGD, lr=lr, momentum=0.9, weight_decay=of.decay)
    joined = Joined(build, of.loss, data.train, sgd, WORKERS, of.together // WORKERS)
    joined.train(order, EPOCHS[task], seed, after_epoch)
    return Curve(losses, sum(learned))


def settled(values: list[float]) -> float:
    """The mean over the last quarter: where a random order's last epoch ends is luck. Infinite if it diverged."""
    last = values[-(len(values) // 4) :]
    return statistics.mean(value if math.isfinite(value) else math.inf for value in last)


def best_rate(by_rate: dict[str, list[float]]) -> str:
    return min(by_rate, key=lambda rate: settled(by_rate[rate]))


def next_rate(by_rate: dict[str, list[float]], rates: tuple[float, ...]) -> float | None:
    """A rate that has not been tried: one of the given ones, then one beyond the best where that is at an end."""
    tried = sorted(float(rate) for rate in by_rate)
    if missing := [rate for rate in rates if rate not in tried]:
        return missing[0]
    best = float(best_rate(by_rate))
    return best / 2 if best == tried[0] else best * 2 if best == tried[-1] else None


class Runs:
    """The runs of a file, and those that it lacks."""

    def __init__(self, table: Path, folder: Path):
        self.table, self.folder = table, folder
        self.runs: dict[str, Any] = json.loads(table.read_text()) if table.exists() else {}

    def add(self, place: dict[str, list[float]], key: str, task: str, name: str, lr: float, seed: int) -> None:
        if key not in place:
            made = ORDERS[name]() if name in ORDERS else CDGraB(**json.loads(name))
            losses, learned = curve(task, made, lr, self.folder, seed)
            place[key] = [float(f"{v:.5g}") for v in losses]
            if learned and seed not in TUNING.values():
                self.runs.setdefault("learned", {}).setdefault(task, {}).setdefault(name, {})[key] = learned
            self.table.write_text(json.dumps(self.runs, indent=1) + "\n")
        print(f"{task:<8}{seed:<3} lr {lr:<8g}{name:<60} {settled(place[key]):.5g}", flush=True)

    def of(self, section: str, task: str, name: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = self.runs.setdefault(section, {}).setdefault(task, {}).setdefault(name, {})
        return found

    def tune(self, task: str, name: str) -> None:
        by_rate = self.of("tuning", task, name)
        while (lr := next_rate(by_rate, RATES[task])) is not None:
            self.add(by_rate, f"{lr:g}", task, name, lr, TUNING["tuning"])

    def tune_again(self, task: str, name: str, rates: list[float]) -> None:
        for lr in rates:
            self.add(self.of("tuning again", task, name), f"{lr:g}", task, name, lr, TUNING["tuning again"])

    def rate(self, task: str, name: str) -> float:
        """The best one by the mean of both seeds, of the rates that both have tried; else by the first seed."""
        tried = [self.runs.get(section, {}).get(task, {}).get(name, {}) for section in TUNING]
        sums = {rate: sum(settled(by[rate]) for by in tried) for rate in tried[0] if rate in tried[1]}
        if sums:
            return float(min(sums, key=lambda rate: sums[rate]))
        return float(best_rate(tried[0])) if tried[0] else RATES[task][1]

    def run(self, task: str, name: str, seed: int) -> None:
        lr = self.rate(task, name)
        self.runs.setdefault("rates", {}).setdefault(task, {})[name] = f"{lr:g}"
        self.add(self.runs.setdefault(task, {}).setdefault(name, {}), str(seed), task, name, lr, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the data's files")
    parser.add_argument("--table", type=Path, required=True, help="JSON file of all runs so far")
    parser.add_argument("--task", nargs="+", choices=EPOCHS, default=list(EPOCHS)[:3])
    parser.add_argument("--orders", nargs="+", default=list(ORDERS)[:4])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--tune", action="store_true", help="choose each order's rate by seed 10")
    parser.add_argument("--again", type=float, nargs="+", metavar="RATE", help="try these rates by seed 11 too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = Runs(args.table, args.data_dir)
    for seed in range(1 if args.tune or args.again else args.seeds):
        for task in args.task:
            for name in args.orders:
                if args.again:
                    runs.tune_again(task, name, args.again)
                elif args.tune:
                    runs.tune(task, name)
                else:
                    runs.run(task, name, seed)


if __name__ == "__main__":
    main()
