"""The papers' tasks at a small scale: loss and test metric per epoch of D-RR, ID-GraB and CD-GraB on 4 and 16 workers.

    python order_curves.py --data-dir DIR --task lenet      # CIFAR-10; minutes on one core
    python order_curves.py --data-dir DIR --task lstm       # WikiText-2, trained on its validation part
    python order_curves.py --data-dir DIR --task logistic   # SST-2, bags of words
    python order_curves.py --data-dir DIR --task lenet --full 1    # all of the data, 50 epochs

Virtual workers, the same number of examples per step for any number of workers, a constant learning rate with
momentum 0.9, as in the paper. The ordered unit is an example; for the exact order of the LSTM it is, as in the paper,
the mean gradient of one step of a worker. `--plot FILE` draws the curves. Sizes are printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common import report
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm, barrier
from equipoise.data import CIFAR10, TSV, Text
from equipoise.data.base import LoadedData
from equipoise.data.source import Source
from equipoise.loop.from_recipe import language_loss
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker
from equipoise.models import LSTM, LeNet, Logistic
from equipoise.order import CDGraB, IDGraB, Order, Reshuffle


class Task(NamedTuple):
    load: Callable[[Path, bool], LoadedData]
    model: Any
    loss: Any
    lr: float
    epochs: int
    together: int  # examples of all workers in a step
    measured: int  # training examples that the loss is measured on
    orders: Callable[[int], dict[str, Order]]  # by the examples of one worker in a step
    decay: float = 0.0  # of the weights; the loss contains its penalty


class Point(NamedTuple):
    loss: float  # on training examples
    test: float  # accuracy, or perplexity
    seconds: float  # of the processor, for this epoch


def orders(cheap: str) -> dict[str, Order]:
    return {
        "D-RR": Reshuffle(),
        "ID-GraB": IDGraB(signal="exact"),
        "CD-GraB": CDGraB(signal="exact"),
        f"CD-GraB {cheap}": CDGraB(signal=cheap, every=1, sweeps=1),
    }


def group_orders(batch: int) -> dict[str, Order]:
    whole: dict[str, Any] = {"signal": "batch", "group": batch}
    return {
        "D-RR": Reshuffle(),
        "ID-GraB groups": IDGraB(**whole),
        "CD-GraB groups": CDGraB(**whole),
        "CD-GraB last-layer": CDGraB(signal="last-layer", every=1, sweeps=1),
    }


def wikitext(where: Path, vocabulary: int | None, limit: int | None) -> LoadedData:
    text, test = (str(where / f"wikitext2-{part}.txt") for part in ("valid", "test"))
    return Text(path=text, test_path=test, vocabulary=vocabulary, limit=limit).load()


TASKS = {
    "lenet": Task(
        lambda where, full: CIFAR10(dir=str(where), limit=None if full else 1024, test_limit=2000).load(),
        LeNet(),
        nn.functional.cross_entropy,
        lr=0.01,
        epochs=20,
        together=16,
        measured=1024,
        orders=lambda batch: orders("projection"),
    ),
    "lstm": Task(
        lambda where, full: wikitext(where, *(None, None) if full else (4000, 2048)),
        LSTM(),
        language_loss,
        lr=2.0,
        epochs=20,
        together=32,
        measured=512,
        orders=group_orders,
    ),
    "logistic": Task(
        lambda where, full: TSV(
            path=str(where / "sst2-train.tsv"),
            test_path=str(where / "sst2-dev.tsv"),
            vocabulary=10000 if full else 2000,
            limit=None if full else 2048,
            features="bag",
        ).load(),
        Logistic(),
        nn.functional.cross_entropy,
        lr=0.2,
        epochs=20,
        together=16,
        measured=2048,
        orders=lambda batch: orders("projection"),
    ),
}


def measure(task: Task, model: nn.Module, data: Any, limit: int) -> tuple[float, float]:
    """Mean loss, and accuracy or perplexity, over the first examples."""
    model.eval()
    losses, right, seen = 0.0, 0.0, 0
    with torch.no_grad():
        for start in range(0, min(limit, len(data)), 128):
            x, y = data.batch(np.arange(start, min(start + 128, limit, len(data))))
            out = model(x)
            losses += float(task.loss(out, y)) * len(x)
            right += float((out.argmax(-1) == y).float().mean()) * len(x)
            seen += len(x)
    model.train()
    mean = losses / seen + task.decay / 2 * float(sum(p.detach().square().sum() for p in model.parameters()))
    return mean, float(np.exp(mean)) if task.loss is language_loss else right / seen


def curve(
    task: Task, data: LoadedData, order: Order, workers: int, epochs: int, lr: float, seed: int, tested: int = 2000
) -> list[Point]:
    """Loss, test metric (on `tested` examples) and seconds of every epoch."""
    points: list[Point] = []

    def build() -> nn.Module:
        torch.manual_seed(seed)
        return task.model.build(data)

    def loop(comm: Comm) -> None:
        job = Job(
            model=build,
            loss=task.loss,
            train=Source(data.train),
            length=Length(epochs=10**6),
            optimizer=lambda p: torch.optim.SGD(p, lr=lr, momentum=0.9, weight_decay=task.decay),
            order=order,
            batch=eq.batch.Fixed(task.together // workers),
            seed=seed,
        )
        worker = Worker(job, comm)
        worker.model.train()
        for epoch in range(epochs):
            if epoch:
                worker.clock.epoch += 1
                worker.position.begin(worker.clock.epoch)
            barrier(comm)
            started = time.process_time()
            while worker.position.steps_left:
                worker.step()
            barrier(comm)  # workers are threads of one process: its time is that of all of them
            spent = time.process_time() - started
            if comm.rank == 0:
                loss, _ = measure(task, worker.model, data.train, task.measured)
                _, test = measure(task, worker.model, data.test, tested)
                points.append(Point(loss, test, spent))

    eq.spawn(loop, workers, virtual=True)
    return points


def draw(name: str, curves: dict[int, dict[str, list[Point]]], metric: str, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(curves), 2, figsize=(9, 3.4 * len(curves)), squeeze=False)
    for (left, right), (workers, by_order) in zip(axes, curves.items(), strict=True):
        for order, points in by_order.items():
            epochs = range(1, len(points) + 1)
            left.semilogy(epochs, [p.loss for p in points], label=order)
            right.plot(epochs, [p.test for p in points])
        left.set(title=f"{name}, {workers} workers", xlabel="epochs", ylabel="training loss")
        right.set(xlabel="epochs", ylabel=metric)
        left.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the data's files")
    parser.add_argument("--task", choices=TASKS, default="lenet")
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--epochs", type=int, help="left out: few, or 50 with --full 1")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full", type=int, default=0, help="1: all of the data")
    parser.add_argument("--plot", metavar="FILE")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    task = TASKS[args.task]
    data = task.load(args.data_dir, bool(args.full))
    epochs, lr = args.epochs or (50 if args.full else task.epochs), args.lr or task.lr
    size = sum(p.numel() for p in task.model.build(data).parameters())
    metric = "test perplexity" if task.loss is language_loss else "test accuracy"
    print(
        f"{args.task}: {len(data.train)} examples of {data.shape}, {data.outputs} outputs, {size:,} parameters, "
        f"{task.together} examples a step, lr {lr:g}, {epochs} epochs"
    )
    curves: dict[int, dict[str, list[Point]]] = {}
    rows: list[tuple[str, float, float | None]] = []
    for workers in args.workers:
        curves[workers] = {}
        for name, order in task.orders(task.together // workers).items():
            points = curves[workers][name] = curve(task, data, order, workers, epochs, lr, args.seed)
            last = points[-1]
            price = statistics.median(p.seconds for p in points)
            print(
                f"  {workers:>2} workers, {name:<20} training loss {last.loss:.4f}, {metric} {last.test:.4f}, "
                f"{price:.1f} processor seconds an epoch",
                flush=True,
            )
        plain = curves[workers]["D-RR"][-1].loss
        for name, points in curves[workers].items():
            if name != "D-RR":
                rows.append((f"{workers} workers: {name} training loss / D-RR's", points[-1].loss / plain, None))
    report(f"Curves of {args.task}", rows, args.json)
    if args.plot:
        draw(args.task, curves, metric, args.plot)


if __name__ == "__main__":
    main()
