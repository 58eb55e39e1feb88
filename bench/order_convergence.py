"""The gain of an order: the gap to the optimum of a convex problem, at equal epochs and at equal processor seconds.

Softmax regression with weight decay, one example per step and worker, a constant learning rate: where random
reshuffling stops improving, a balanced order continues. 4 virtual workers on 2048 images: Fashion-MNIST with
`--data-dir DIR` (its idx files; reduced to 14 x 14 by averaging), otherwise the bundled digits (1,436 of them).
`--full 1` runs three times the epochs and three seeds; `--plot FILE` draws the gaps.

Seconds are processor seconds of all workers in this process, without evaluation. Orders without extra cost run until
they have used as many seconds as exact CD-GraB for its epochs. A gap is the mean over the last five epochs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from common import report
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm, barrier
from equipoise.data.digits import Digits
from equipoise.data.fashion_mnist import FashionMNIST
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker

DECAY = 1e-2
FREE = ("D-RR", "flip-flop", "paired reversal")
ORDERS: dict[str, Callable[[], eq.order.Order]] = {
    "CD-GraB": lambda: eq.order.CDGraB(signal="exact"),
    "D-RR": eq.order.Reshuffle,
    "CD-GraB projection": lambda: eq.order.CDGraB(signal="projection", every=1, sweeps=1),
    "ID-GraB pair": lambda: eq.order.IDGraB(signal="exact"),
    "flip-flop": eq.order.FlipFlop,
    "paired reversal": eq.order.PairedReversal,
    "ID-GraB mean": lambda: eq.order.IDGraB(signal="exact", balance="mean"),
    "CD-GraB stale": lambda: eq.order.CDGraB(signal="exact", coordinate="stale"),
}
Curve = list[tuple[float, float]]  # processor seconds so far and gap, after every epoch


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


def curve(
    order: eq.order.Order,
    x: torch.Tensor,
    y: torch.Tensor,
    best: float,
    lr: float,
    seed: int,
    over: Callable[[Curve], bool],
) -> Curve:
    """Train until `over` says so, asked after every epoch."""
    done: Curve = []

    def loop(comm: Comm) -> None:
        job = Job(
            model=lambda: model(x),
            loss=nn.functional.cross_entropy,
            train=Source((x, y)),
            length=Length(epochs=10**6),
            optimizer=lambda p: torch.optim.SGD(p, lr=lr, weight_decay=DECAY),
            order=order,
            batch=eq.batch.Fixed(1),
            seed=seed,
        )
        worker = Worker(job, comm)
        worker.model.train()
        spent = 0.0
        while True:
            barrier(comm)
            started = time.process_time()
            while worker.position.steps_left:
                worker.step()
            barrier(comm)  # workers are threads of one process: its time is that of all of them
            spent += time.process_time() - started
            if comm.rank == 0:
                layer = model(x).double()
                layer.load_state_dict(worker.model.state_dict())
                with torch.no_grad():
                    done.append((spent, float(value(layer, x.double(), y)) - best))
            barrier(comm)
            if over(done):
                return
            worker.clock.epoch += 1
            worker.position.begin(worker.clock.epoch)

    eq.spawn(loop, 4, virtual=True)
    return done


def settled(points: Curve) -> float:
    """The mean over the last five epochs: where a random order's last epoch ends is luck."""
    return statistics.mean(gap for _, gap in points[-5:])


def draw(curves: dict[str, Curve], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for name, points in curves.items():
        axes[0].semilogy(range(1, len(points) + 1), [g for _, g in points], label=name)
        axes[1].semilogy([s for s, _ in points], [g for _, g in points])
    axes[0].set(xlabel="epochs", ylabel="loss - optimum")
    axes[1].set(xlabel="processor seconds")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--data-dir", metavar="DIR", help="folder of Fashion-MNIST's idx files; left out: the digits")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--full", type=int, default=0)
    parser.add_argument("--plot", metavar="FILE", help="draw the curves of the first seed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    x, y = problem(args.data_dir)
    best = optimum(x, y)
    epochs = args.epochs * (3 if args.full else 1)
    results: dict[str, list[Curve]] = {name: [] for name in ORDERS}
    for seed in range(3 if args.full else 1):
        for name, order in ORDERS.items():
            limit = results["CD-GraB"][seed][-1][0] if name in FREE else 0.0

            def over(points: Curve, limit: float = limit) -> bool:
                return len(points) >= epochs and points[-1][0] >= limit

            results[name].append(curve(order(), x, y, best, args.lr, seed, over))
            points = results[name][-1]
            later = f", {settled(points):.2e} after {len(points)}" if len(points) > epochs else ""
            print(
                f"  {name:<20} gap {settled(points[:epochs]):.2e} after {epochs} epochs{later}; "
                f"{points[epochs - 1][0] / epochs:.2f} processor seconds an epoch",
                flush=True,
            )
            if args.plot and seed == 0:
                draw({name: curves[0] for name, curves in results.items() if curves}, args.plot)

    gaps = {name: statistics.mean(settled(points[:epochs]) for points in results[name]) for name in ORDERS}
    equal = {name: statistics.mean(settled(points) for points in results[name]) for name in FREE}
    goals = {"CD-GraB": 1 / 50, "CD-GraB projection": 1 / 8}
    rows: list[tuple[str, float, float | None]] = [
        (f"{name} gap / D-RR gap", gaps[name] / gaps["D-RR"], goals.get(name)) for name in ORDERS if name != "D-RR"
    ]
    rows += [(f"at equal seconds: CD-GraB gap / {name} gap", gaps["CD-GraB"] / equal[name], 1.0) for name in FREE]
    report(f"Convergence, {len(x)} examples, 4 workers, {epochs} epochs, optimum {best:.6f}", rows, args.json)


if __name__ == "__main__":
    main()
