"""What blocks that follow the speeds save in real processes, and what is left of the ideal.

    python partition_processes.py --data-dir DIR [--pace slowed|clocked] [--batch 32,64,128]      # alone on the machine

LeNet on CIFAR-10, four processes at the speeds 1:2:4:8, a round at every second step. Two ways to be slow:

- `slowed`: a worker sleeps for a multiple of its own processor time. What four processes on few processors take from
  each other (caches, hyperthreads, turns) is multiplied as well, up to 24 times.
- `clocked`: a worker sleeps until its step of b examples has taken (a + c b) / r_j seconds, a = 18 c, as on a machine
  of its own. What is measured is the library: what it makes of the speeds, and what rounds and waiting cost.

`--spare` slows the workers of `slowed` by that factor more, so that the fastest do not need all of the processors,
which real machines do not share. Blocks: equal; proportional to the declared speeds; proportional to measured ones, for
which a step costs a_j + c_j b. `reachable` is what the best blocks give with that cost and at least one example per
worker; without the fixed cost it is the harmonic limit min(r) / mean(r).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from common import report
from torch import nn

import equipoise as eq
from equipoise.comm.current import current_comm
from equipoise.config import registry

SPEEDS = [1.0, 2.0, 4.0, 8.0]
BLOCKS = {
    "equal": lambda: eq.partition.Stratified(),
    "declared": lambda: eq.partition.Stratified(speeds=SPEEDS),
    "measured": lambda: eq.partition.Stratified(speeds="measured"),
}
FIXED = 18  # examples that cost as much as what every step costs
EXAMPLE = 2.2e-4  # seconds of an example on the fastest clocked worker


class Clocked(nn.Module):
    """A model whose batches take as long as on a machine of this speed: it sleeps when the last gradient is there."""

    def __init__(self, model: nn.Module, example: float):
        super().__init__()
        self.model, self.example, self.due, self.missing = model, example, 0.0, 0
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.accumulated)

    def forward(self, x: torch.Tensor) -> Any:
        if self.training and torch.is_grad_enabled():
            self.due = time.perf_counter() + (FIXED + len(x)) * self.example
            self.missing = sum(1 for _ in self.model.parameters())
        return self.model(x)

    def accumulated(self, parameter: torch.Tensor) -> None:
        self.missing -= 1
        if self.missing == 0:
            time.sleep(max(0.0, self.due - time.perf_counter()))


def reachable(mean: int) -> float:
    """Seconds of a step at the best batches, of at least one example, relative to equal ones."""
    costs = [max(SPEEDS) / speed for speed in SPEEDS]
    low, high = 0.0, costs[0] * (FIXED + mean)
    for _ in range(60):
        middle = (low + high) / 2
        taken = sum(max(1.0, middle / cost - FIXED) for cost in costs)
        low, high = (middle, high) if taken < mean * len(SPEEDS) else (low, middle)
    return max(high, costs[0] * (FIXED + 1)) / (costs[0] * (FIXED + mean))


def one(args: argparse.Namespace, data: Any, mean: int, blocks: str) -> dict[str, Any]:
    clocked = args.pace == "clocked"
    slow = [(1.0 if clocked else args.spare) * max(SPEEDS) / speed for speed in SPEEDS]

    def build() -> nn.Module:
        torch.manual_seed(0)
        model: nn.Module = registry.get("model", "lenet")().build(data)
        return Clocked(model, EXAMPLE * slow[current_comm().rank]) if clocked else model

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
        slow=None if clocked else slow,
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


def keep(path: Path, pace: str, mean: str, rows: dict[str, Any]) -> None:
    """Beside what the file has."""
    known = json.loads(path.read_text()) if path.exists() else {}
    known.setdefault(pace, {})[mean] = rows
    path.write_text(json.dumps(known, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--pace", choices=("slowed", "clocked"), default="clocked")
    parser.add_argument("--batch", type=lambda text: [int(b) for b in text.split(",")], default=[32, 64, 128])
    parser.add_argument("--spare", type=float, default=3.0, help="of slowed workers")
    parser.add_argument("--examples", type=int, default=4000)
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--json", metavar="FILE", help="also write {ratio name: value}")
    parser.add_argument("--table", metavar="FILE", help="add what was measured to this file, for docs/make_tables.py")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = registry.get("data", "cifar10")(dir=args.data_dir, limit=args.examples, test_limit=200).load()
    ideal = min(SPEEDS) * len(SPEEDS) / sum(SPEEDS)
    ratios: list[tuple[str, float, float | None]] = []
    print(f"{'batch':>6} {'blocks':<10} {'seconds':>8} {'/ equal':>8} {'reachable':>9}  compute, samples by worker")
    for mean in args.batch:
        best = reachable(mean)
        rows = {blocks: one(args, data, mean, blocks) for blocks in BLOCKS}
        for blocks, row in rows.items():
            part = row["seconds"] / rows["equal"]["seconds"]
            compute = ", ".join(f"{seconds:.2f}" for seconds in row["compute"])
            print(f"{mean:6} {blocks:<10} {row['seconds']:8.2f} {part:8.3f} {best:9.3f}  {compute}   {row['samples']}")
            goal = 1.15 * ideal if blocks == "measured" else None
            ratios.append((f"batch {mean}: {blocks} / equal", part, goal))
        if args.table:
            keep(Path(args.table), args.pace, str(mean), rows | {"reachable": best})
    report("seconds, compared with equal blocks", ratios, args.json)


if __name__ == "__main__":
    main()
