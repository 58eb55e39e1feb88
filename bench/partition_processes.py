"""What blocks that follow the speeds save in real processes, and what is left of the ideal.

    python partition_processes.py --data-dir DIR [--batch 32,64,128] [--spare 3]      # alone on the machine

LeNet on CIFAR-10, four processes at the speeds 1:2:4:8, a round at every second step. A worker is slowed down by
sleeping for a multiple of its own processor time; `--spare` slows all of them by that factor more, so that the fastest
do not need all of the processors, which real machines do not share. Blocks: equal; proportional to the declared speeds;
proportional to measured ones, for which a step costs a_j + c_j b. `ideal` is the harmonic limit min(r) / mean(r).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from common import report
from torch import nn

import equipoise as eq
from equipoise.config import registry

SPEEDS = [1.0, 2.0, 4.0, 8.0]
BLOCKS = {
    "equal": lambda: eq.partition.Stratified(),
    "declared": lambda: eq.partition.Stratified(speeds=SPEEDS),
    "measured": lambda: eq.partition.Stratified(speeds="measured"),
}


def one(args: argparse.Namespace, data: Any, mean: int, blocks: str) -> dict[str, Any]:
    def build() -> nn.Module:
        torch.manual_seed(0)
        model: nn.Module = registry.get("model", "lenet")().build(data)
        return model

    run = eq.train(
        build,
        nn.CrossEntropyLoss(),
        data.train,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.05),
        workers=len(SPEEDS),
        epochs=args.epochs,
        batch=eq.batch.Proportional(mean),
        partition=BLOCKS[blocks](),
        sync=eq.sync.PeriodicAverage(),
        period=2,
        virtual=False,
        slow=[args.spare * max(SPEEDS) / speed for speed in SPEEDS],
        log_every=10**6,
        checkpoint_every=10**9,
        evaluate_every=10**6,
    )
    rows = run.result["workers"]
    return {
        "seconds": run.result["seconds"],
        "compute": [row["compute"] for row in rows],
        "wait": [row["wait"] for row in rows],
        "samples": [row["samples"] for row in rows],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--batch", type=lambda text: [int(b) for b in text.split(",")], default=[32, 64, 128])
    parser.add_argument("--spare", type=float, default=3.0)
    parser.add_argument("--examples", type=int, default=4000)
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--json", metavar="FILE", help="also write {ratio name: value}")
    parser.add_argument("--table", metavar="FILE", help="write what was measured, for docs/make_tables.py")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = registry.get("data", "cifar10")(dir=args.data_dir, limit=args.examples, test_limit=200).load()
    ideal = min(SPEEDS) * len(SPEEDS) / sum(SPEEDS)
    table: dict[str, Any] = {}
    ratios: list[tuple[str, float, float | None]] = []
    print(
        f"{'batch':>6} {'blocks':<10} {'seconds':>8} {'/ equal':>8} {'ideal':>6}  compute by worker, samples by worker"
    )
    for mean in args.batch:
        rows = {blocks: one(args, data, mean, blocks) for blocks in BLOCKS}
        for blocks, row in rows.items():
            part = row["seconds"] / rows["equal"]["seconds"]
            compute = ", ".join(f"{seconds:.2f}" for seconds in row["compute"])
            print(f"{mean:6} {blocks:<10} {row['seconds']:8.2f} {part:8.3f} {ideal:6.3f}  {compute}   {row['samples']}")
            goal = 1.15 * ideal if blocks == "measured" else None
            ratios.append((f"batch {mean}: {blocks} / equal", part, goal))
        table[str(mean)] = rows
    if args.table:
        Path(args.table).write_text(json.dumps({"ideal": ideal, "rows": table}, indent=1) + "\n")
    report("seconds, compared with equal blocks", ratios, args.json)


if __name__ == "__main__":
    main()
