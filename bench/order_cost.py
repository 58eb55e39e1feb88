"""The cost of a balanced order on one worker: ordered epoch / plain epoch, and the extra memory in vectors of d.

MLP 784-1024-1024-10 with batches of 64, LeNet on images of CIFAR-10's shape with batches of 16, an LSTM of width 32 on
windows of 35 of 4,000 words with batches of 8, softmax regression of 64 features with single examples, a small
transformer with WikiText-2's vocabulary with batches of 16; with `--tasks`, LeNet with batches of 2 and the LSTM with
single windows as in order_seconds.py. One thread; whole epochs of all variants in turn, five for
one measurement, medians of the ratios of processor seconds. `--tasks` and `--orders` select. For comparison, on the
MLP: the same pair balance on per-example gradients by vmap, grab-sampler if it is installed (patched, because it does
not run with this torch), and the update of S by half of the products and the gradient (S += 2 F - G) instead of all
products.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import resource
import statistics
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch
from common import arguments, median_ratio, report
from torch import nn

import equipoise as eq
from equipoise.comm.current import current_comm
from equipoise.core.context import Context
from equipoise.data.base import LoadedData
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker
from equipoise.models.lenet import LeNet
from equipoise.models.lstm import LSTM
from equipoise.models.transformer import Transformer
from equipoise.order.balanced_order import BalancedOrder

WORDS, FEW_WORDS, LENGTH = 33278, 4000, 35

ORDERS: dict[str, Callable[[], eq.order.Order]] = {
    "plain": eq.order.Reshuffle,
    "default": eq.order.PairBalance,
    "exact pair": lambda: eq.order.PairBalance(signal="exact"),
    "exact mean": lambda: eq.order.GraB(signal="exact"),
    "forward mode": lambda: eq.order.PairBalance(signal="forward"),
    "projection": lambda: eq.order.PairBalance(signal="projection", every=1),
    "count sketch": lambda: eq.order.PairBalance(signal="count-sketch", every=1),
    "last layer": lambda: eq.order.PairBalance(signal="last-layer", every=1),
}
GOALS = {
    **{(task, "default"): 1.05 for task in ("MLP", "LeNet", "LSTM", "softmax", "transformer")},
    ("MLP", "exact pair"): 1.7,
    ("LeNet", "exact pair"): 2.0,
    ("transformer", "exact pair"): 2.0,
    **{(task, cheap): 1.15 for task in ("MLP", "LeNet", "transformer") for cheap in ("projection", "last layer")},
}


def mlp() -> nn.Module:
    layers = [nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    return nn.Sequential(*layers)


def images(shape: tuple[int, ...]) -> LoadedData:
    nothing = (torch.zeros(1, *shape), torch.zeros(1, dtype=torch.int64))
    return LoadedData(train=nothing, test=nothing, task="classify", outputs=10, shape=shape, tokens=None, notes={})


def words(count: int = WORDS) -> LoadedData:
    nothing = (torch.zeros(1, LENGTH, dtype=torch.int64), torch.zeros(1, LENGTH, dtype=torch.int64))
    return LoadedData(
        train=nothing, test=nothing, task="language", outputs=count, shape=(LENGTH,), tokens=count, notes={}
    )


def tasks() -> dict[str, tuple[Callable[[], nn.Module], Any, Any, int]]:
    """Model, loss, data, batch."""
    draw = torch.Generator().manual_seed(0)
    classes = torch.randint(10, (2048,), generator=draw)
    # Zipf: the n-th word has a frequency in proportion to 1/n.
    text = (torch.exp(torch.rand(512, LENGTH + 1, generator=draw) * torch.log(torch.tensor(float(WORDS)))) - 1).long()
    from equipoise.loop.from_recipe import language_loss

    sets: dict[str, tuple[Callable[[], nn.Module], Any, Any, int]] = {
        "MLP": (mlp, nn.functional.cross_entropy, (torch.randn(2048, 784, generator=draw), classes), 64),
        "LeNet": (
            lambda: LeNet().build(images((3, 32, 32))),
            nn.functional.cross_entropy,
            (torch.randn(2048, 3, 32, 32, generator=draw), classes),
            16,
        ),
        "LSTM": (
            lambda: LSTM().build(words(FEW_WORDS)),
            language_loss,
            (text[:, :-1] % FEW_WORDS, text[:, 1:] % FEW_WORDS),
            8,
        ),
        "softmax": (
            lambda: nn.Linear(64, 10),
            nn.functional.cross_entropy,
            (torch.randn(2048, 64, generator=draw), classes),
            1,
        ),
        "transformer": (lambda: Transformer().build(words()), language_loss, (text[:, :-1], text[:, 1:]), 16),
    }
    return {**sets, "LeNet batch 2": (*sets["LeNet"][:3], 2), "LSTM batch 1": (*sets["LSTM"][:3], 1)}


def worker_of(task: tuple[Any, ...], order: eq.order.Order) -> Worker:
    model, loss, data, batch = task

    def make() -> nn.Module:
        torch.manual_seed(0)
        return model()

    job = Job(
        model=make,
        loss=loss,
        train=Source(data),
        length=Length(epochs=1000),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.01),
        order=order,
        batch=eq.batch.Fixed(batch),
    )
    worker = Worker(job, current_comm())
    worker.model.train()
    return worker


def steps(worker: Worker, count: int) -> None:
    for _ in range(count):
        if worker.position.steps_left == 0:
            worker.clock.epoch += 1
            worker.position.begin(worker.clock.epoch)
        worker.step()


def epochs_of_a_cycle(order: eq.order.Order) -> int:
    """One of them is learned from."""
    return order.builder.every if isinstance(order, BalancedOrder) else 1


def settle(worker: Worker, epoch: int) -> None:
    """Run until an order that finds out how often it has to learn has done so."""
    steps(worker, epoch)
    while isinstance(worker.order, BalancedOrder) and not worker.order.chosen.every and worker.clock.epoch < 16:
        steps(worker, epoch)


def per_example(task: tuple[Any, ...]) -> tuple[dict[str, torch.Tensor], Callable[..., dict[str, torch.Tensor]]]:
    """The weights, and a function from them and a batch to the gradient of every example, made."""
    from torch.func import functional_call, grad, vmap

    torch.manual_seed(0)
    model, loss = task[0](), task[1]
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def one(weights: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return loss(functional_call(model, weights, a.unsqueeze(0)), b.unsqueeze(0))

    return parameters, vmap(grad(one), in_dims=(None, 0, 0))


def by_vmap(task: tuple[Any, ...]) -> Callable[[int], None]:
    """Pair balance on gradients that are made: what there was before."""
    parameters, gradients = per_example(task)
    (x, y), batch = task[2:]
    total = torch.zeros(sum(p.numel() for p in parameters.values()))

    def run(count: int) -> None:
        for step in range(count):
            start = step * batch % (len(x) - batch)
            result = gradients(parameters, x[start : start + batch], y[start : start + batch])
            rows = torch.cat([g.flatten(1) for g in result.values()], 1)
            for k in range(0, batch, 2):
                v = rows[k] - rows[k + 1]
                total.add_(v, alpha=1 if total @ v <= 0 else -1)
            for name, g in result.items():
                parameters[name] = parameters[name] - 0.01 * g.mean(0)

    return run


def by_grab_sampler(task: tuple[Any, ...]) -> Callable[[int], None] | None:
    """The package as its readme uses it, with two patches: it imports torch-sparse, which only one of its projections
    needs, and passes an argument to `Sampler` that torch no longer accepts.
    """
    if importlib.util.find_spec("grabsampler") is None:
        print("grab-sampler is not installed: pip install --no-deps grab-sampler; pip install absl-py overrides tqdm")
        return None
    if importlib.util.find_spec("torch_sparse") is None:
        stub = types.ModuleType("torch_sparse")
        stub.SparseTensor = object  # type: ignore[attr-defined]
        sys.modules["torch_sparse"] = stub
    torch.utils.data.Sampler.__init__ = lambda self, *args: None  # type: ignore[method-assign, assignment]
    from grabsampler import GraBSampler

    parameters, gradients = per_example(task)
    (x, y), batch = task[2:]
    sampler = GraBSampler(range(len(x)), parameters, balance_type="pair", device="cpu")
    indices: list[int] = []

    def run(count: int) -> None:
        for _ in range(count):
            if not indices:
                indices.extend(iter(sampler))
            chosen = [indices.pop(0) for _ in range(batch)]
            result = gradients(parameters, x[chosen], y[chosen])
            sampler.step(result)
            for name, g in result.items():
                parameters[name] = parameters[name] - 0.01 * g.mean(0)

    return run


def update_of_s(task: tuple[Any, ...], batch: int, repetitions: int) -> float:
    """Seconds of `S += 2 F - G` / seconds of `S += sum s_i g_i` by products alone."""
    torch.manual_seed(0)
    model, loss, (x, y) = task[0](), task[1], task[2]
    signal = eq.signal.Exact().bind(Context(current_comm()))
    with signal.watching(model, batch):
        loss(model(x[:batch]), y[:batch]).backward()
    view = signal.view()
    known, total = view.summed, view.zeros()
    signs = 1.0 - 2.0 * (torch.arange(batch) % 2)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(10 * repetitions):
        for split in seconds:
            view.summed = known if split else {}
            started = time.perf_counter()
            view.add_to(total, signs)
            seconds[split].append(time.perf_counter() - started)
    return median_ratio(seconds[True], seconds[False])


def peak(task: tuple[Any, ...], order: Callable[[], eq.order.Order]) -> int:
    """Bytes that twelve steps take at the most, in a process of their own."""
    receive, send = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        steps(worker_of(task, order()), 12)
        send.send(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
        os._exit(0)
    result = receive.recv()
    os.waitpid(child, 0)
    return result


def main() -> None:
    args = arguments(
        __doc__ or "", repetitions=7, peers=1, memory=1, tasks="MLP,LeNet,LSTM,softmax,transformer", orders=""
    )
    torch.set_num_threads(1)
    compared = {name: make for name, make in ORDERS.items() if name in ("plain", *(args.orders or name).split(","))}
    rows: list[tuple[str, float, float | None]] = []
    for name, task in tasks().items():
        if name not in args.tasks.split(","):
            continue
        d = sum(p.numel() for p in task[0]().parameters())
        if args.memory:  # before anything has grown this process
            used = {order: peak(task, make) for order, make in compared.items()}
        workers = {order: worker_of(task, make()) for order, make in compared.items()}
        epoch = -(-len(task[2][0]) // task[3])
        for worker in workers.values():
            settle(worker, epoch)
        seconds: dict[str, list[float]] = {order: [] for order in compared}
        cycle = max(epochs_of_a_cycle(worker.order) for worker in workers.values())
        for _ in range(args.repetitions):
            spent = dict.fromkeys(workers, 0.0)
            # Whole epochs in turn, as the work at the end of one counts; whole cycles where only some are learned from.
            for _ in range(cycle):
                for order, worker in workers.items():
                    started = time.process_time()
                    steps(worker, epoch)
                    spent[order] += time.process_time() - started
            for order, total in spent.items():
                seconds[order].append(total / (cycle * epoch))
        print(f"{name}: d = {d:,}, plain step {1e3 * sorted(seconds['plain'])[args.repetitions // 2]:.2f} ms")
        print("  learned epochs: one in", {order: epochs_of_a_cycle(worker.order) for order, worker in workers.items()})
        for order in list(compared)[1:]:
            goal = GOALS.get((name, order))
            rows.append((f"{name}: {order} / plain", median_ratio(seconds[order], seconds["plain"]), goal))
        if args.memory:
            for order in list(compared)[1:]:
                extra = (used[order] - used["plain"]) / (4 * d)
                rows.append((f"{name}: {order}, extra memory in vectors of d", extra, 3.0))
        if name != "MLP" or not args.peers:
            continue
        peers = {"made gradients (vmap)": by_vmap(task), "grab-sampler pair": by_grab_sampler(task)}
        for peer, run in peers.items():
            if run is None:
                continue
            run(1)
            slow = []
            for _ in range(3):
                started = time.perf_counter()
                run(2)
                slow.append((time.perf_counter() - started) / 2)
            ratio = statistics.median(slow) / statistics.median(seconds["plain"])
            rows.append((f"MLP: {peer} / plain", ratio, None))
        for batch in (64, 256, 1024):
            ratio = update_of_s(task, batch, args.repetitions)
            rows.append((f"MLP: update of S with the gradient / by products alone, batch {batch}", ratio, None))
    report("The price of a balanced order", rows, args.json)


if __name__ == "__main__":
    main()
