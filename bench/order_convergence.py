"""What orders are worth: the gap to the optimum of a convex problem, at equal epochs and at equal seconds.

Softmax regression with weight decay, one example a step and worker, a constant step: where random reshuffling stops
falling, a balanced order goes on. 4 virtual workers on 2048 images. Images are Fashion-MNIST's with `--data DIR` (its
idx files; reduced to 14 x 14 by averaging), otherwise the bundled digits (1,436 of them). `--full 1` runs more epochs
and three seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from common import report
from torch import nn

import equipoise as eq
from equipoise.data.digits import Digits
from equipoise.data.fashion_mnist import FashionMNIST

DECAY = 1e-2
ORDERS: dict[str, Callable[[], eq.order.Order]] = {
    "D-RR": eq.order.Reshuffle,
    "flip-flop": eq.order.FlipFlop,
    "paired reversal": eq.order.PairedReversal,
    "ID-GraB pair": eq.order.IDGraB,
    "ID-GraB mean": lambda: eq.order.IDGraB(balance="mean"),
    "CD-GraB": eq.order.CDGraB,
    "CD-GraB stale": lambda: eq.order.CDGraB(coordinate="stale"),
    "CD-GraB projection": lambda: eq.order.CDGraB(signal="projection"),
}


def problem(folder: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    if folder is None:
        train = Digits().load().train
        x, y = train.x, train.y
    else:
        train = FashionMNIST(dir=folder).load().train
        x, y = nn.functional.avg_pool2d(train.x[:2048].float().reshape(-1, 1, 28, 28), 2), train.y[:2048]
    x = x.float().flatten(1)
    count = min(2048, len(x) // 4 * 4)
    x = (x - x.mean()) / x.std() / x.shape[1] ** 0.5
    return x[:count], y[:count].long()


def model(x: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(x.shape[1], 10)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def value(layer: nn.Linear, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    squares = layer.weight.pow(2).sum() + layer.bias.pow(2).sum()
    return nn.functional.cross_entropy(layer(x), y) + DECAY / 2 * squares


def optimum(x: torch.Tensor, y: torch.Tensor) -> float:
    layer = model(x).double()
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=2000, tolerance_grad=1e-12, tolerance_change=1e-16)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = value(layer, x.double(), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    return float(closure().detach())


def gap(
    order: eq.order.Order, x: torch.Tensor, y: torch.Tensor, best: float, epochs: int, lr: float, seed: int
) -> tuple[float, float]:
    """The gap at the end, and the seconds it took."""
    started = time.perf_counter()
    run = eq.train(
        lambda: model(x),
        nn.functional.cross_entropy,
        (x, y),
        test=(x[:4], y[:4]),
        optimizer=lambda p: torch.optim.SGD(p, lr=lr, weight_decay=DECAY),
        workers=4,
        order=order,
        batch=1,
        epochs=epochs,
        seed=seed,
        evaluate_every=10**6,
        log_every=10**6,
    )
    seconds = time.perf_counter() - started
    with torch.no_grad():
        return float(value(run.model.double(), x.double(), y)) - best, seconds


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--data", metavar="DIR", help="folder of Fashion-MNIST's idx files; left out: the digits")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--full", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    x, y = problem(args.data)
    best = optimum(x, y)
    seeds = range(3) if args.full else range(1)
    epochs = args.epochs * (3 if args.full else 1)
    gaps: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for name, order in ORDERS.items():
        found = [gap(order(), x, y, best, epochs, args.lr, seed) for seed in seeds]
        gaps[name] = float(np.mean([g for g, _ in found]))
        seconds[name] = float(np.mean([s for _, s in found]))
        print(f"  {name:<20} gap {gaps[name]:.3e} after {epochs} epochs, {seconds[name]:.1f} s", flush=True)
    # Random reshuffling for as many seconds as the dearest balanced order takes.
    longer = max(epochs, int(epochs * seconds["CD-GraB"] / seconds["D-RR"]))
    equal = {
        name: gap(ORDERS[name](), x, y, best, longer, args.lr, 0)[0]
        for name in ("D-RR", "flip-flop", "paired reversal")
    }
    random = gaps["D-RR"]
    rows: list[tuple[str, float, float | None]] = [
        ("CD-GraB gap / D-RR gap", gaps["CD-GraB"] / random, 1 / 50),
        ("CD-GraB projection gap / D-RR gap", gaps["CD-GraB projection"] / random, 1 / 8),
        ("CD-GraB stale gap / D-RR gap", gaps["CD-GraB stale"] / random, None),
        ("ID-GraB pair gap / D-RR gap", gaps["ID-GraB pair"] / random, None),
        ("ID-GraB mean gap / D-RR gap", gaps["ID-GraB mean"] / random, None),
        ("flip-flop gap / D-RR gap", gaps["flip-flop"] / random, None),
        ("paired reversal gap / D-RR gap", gaps["paired reversal"] / random, None),
        *((f"at equal seconds: CD-GraB gap / {name} gap", gaps["CD-GraB"] / g, 1.0) for name, g in equal.items()),
    ]
    report(f"Convergence, {len(x)} examples, 4 workers, optimum {best:.6f}", rows, args.json)


if __name__ == "__main__":
    main()
