"""Do balanced orders pay in seconds? Training loss at equal epochs and at equal seconds, several seeds.

    python order_seconds.py --data-dir DIR --table FILE                 # convex, lenet and lstm, 3 seeds
    python order_seconds.py --data-dir DIR --table FILE --task lenet --seeds 1 --orders D-RR flip-flop

Tasks: the convex problem of order_convergence.py, and LeNet on CIFAR-10 and the LSTM on WikiText-2 of order_curves.py;
4 virtual workers, a constant learning rate. Every run adds its loss after each epoch to FILE; a run that is there is
not repeated. Seconds are epochs times the cost of a step, which order_cost.py measures on a quiet machine (`--cost`),
so that the load of this machine does not matter: with a cost of 1.04, 25 epochs pay for 26 of random reshuffling.
Other options of CD-GraB: an order that is a JSON object, such as '{"signal": "exact", "every": 5}'.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import order_convergence
import order_curves
import torch

from equipoise.data import CIFAR10
from equipoise.order import CDGraB, FlipFlop, Order, PairedReversal, Reshuffle

WORKERS, SEEDS = 4, 3
EPOCHS = {"convex": 20, "lenet": 20, "lstm": 15}
ORDERS: dict[str, Callable[[], Order]] = {
    "D-RR": Reshuffle,
    "CD-GraB": CDGraB,
    "flip-flop": FlipFlop,
    "paired reversal": PairedReversal,
    "CD-GraB, every epoch, exact": lambda: CDGraB(signal="exact"),
    "CD-GraB, every epoch, projection": lambda: CDGraB(signal="projection", every=1, sweeps=1),
}
Table = dict[str, Any]
# Less noise per step than in order_curves.py (twice the batch, half the rate, four times the images): there, the last
# loss of one seed differs from another's by more than any order could gain.
LENET = order_curves.TASKS["lenet"]._replace(
    load=lambda where, full: CIFAR10(dir=str(where), limit=4096, test_limit=16).load(), lr=0.005, together=32
)


def losses(task: str, order: Order, folder: Path, seed: int) -> list[float]:
    """The training loss (convex: minus the optimum) after every epoch."""
    if task == "convex":
        x, y = order_convergence.problem(str(folder) if list(folder.glob("*idx3*")) else None)
        best = order_convergence.optimum(x, y)
        points = order_convergence.curve(order, x, y, best, 0.5, seed, lambda done: len(done) >= EPOCHS[task])
        return [gap for _, gap in points]
    of = LENET if task == "lenet" else order_curves.TASKS[task]
    data = of.load(folder, False)
    return [p.loss for p in order_curves.curve(of, data, order, WORKERS, EPOCHS[task], of.lr, seed, tested=16)]


def settled(values: list[float], epochs: int) -> float:
    """The mean over the last three epochs: where a random order's last epoch ends is luck."""
    return statistics.mean(values[max(0, epochs - 3) : epochs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the data's files")
    parser.add_argument("--table", type=Path, required=True, help="JSON file of all runs so far")
    parser.add_argument("--task", nargs="+", choices=EPOCHS, default=list(EPOCHS))
    parser.add_argument("--orders", nargs="+", default=list(ORDERS)[:4])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table: Table = json.loads(args.table.read_text()) if args.table.exists() else {}
    for seed in range(args.seeds):
        for task in args.task:
            for name in args.orders:
                runs = table.setdefault(task, {}).setdefault(name, {})
                if str(seed) not in runs:
                    made = ORDERS[name]() if name in ORDERS else CDGraB(**json.loads(name))
                    runs[str(seed)] = [float(f"{v:.5g}") for v in losses(task, made, args.data_dir, seed)]
                    args.table.write_text(json.dumps(table, indent=1) + "\n")
                values = runs[str(seed)]
                print(f"{task:<8}{seed} {name:<60} {settled(values, len(values)):.5g}", flush=True)


if __name__ == "__main__":
    main()
