"""The cost of a batch-size test at H = 16: 4 gloo processes, LeNet on CIFAR-sized images, batch 32, plain SGD.

A step is one complete iteration of the loop without a round. The cost of a test is the additional time of everything
a rule does in H steps (measuring at every step, and a round with its piggyback) over the round of the same sync with
a constant batch. Both are measured separately and in turn, because the noise of the machine exceeds the difference
between complete runs. The unit is processor time: there are more workers than cores, so wall-clock time mostly shows
the scheduler; it is printed as well. The 1M-parameter MLP has little computation per parameter, and no goal.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import torch
from common import arguments, images, mlp, report
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm, barrier
from equipoise.data.base import Arrays, LoadedData
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker
from equipoise.models import LeNet

H = 16
RULES = {
    "constant": eq.batch.Fixed(32),
    "fused": eq.batch.NormTest(start=32, most=10**6, eta=math.inf),
    "pseudo": eq.batch.NormTest(start=32, most=10**6, eta=math.inf, estimator="pseudo"),
}


def lenet() -> nn.Module:
    torch.manual_seed(0)
    empty = Arrays(torch.zeros(1, 3, 32, 32).numpy(), torch.zeros(1, dtype=torch.int64).numpy())
    return LeNet().build(LoadedData(empty, empty, "classify", 10, (3, 32, 32)))


def pictures(examples: int = 4096) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(examples, 3, 32, 32, generator=generator), torch.randint(10, (examples,), generator=generator)


def measure(
    comm: Comm, model: Callable[[], nn.Module], data: tuple[torch.Tensor, torch.Tensor], turns: int
) -> dict[str, float]:
    """Median seconds of a step, of a plain round (`constant`), and of what each rule adds to H steps."""
    workers = {
        name: Worker(
            Job(
                model=model,
                loss=nn.CrossEntropyLoss(),
                train=Source(data),
                length=Length(epochs=10**6),
                optimizer=lambda p: torch.optim.SGD(p, lr=1e-4),
                batch=rule,
                sync=eq.sync.PeriodicAverage(),
                period=eq.period.Every(10**9),
            ),
            comm,
        )
        for name, rule in RULES.items()
    }

    def step(worker: Worker) -> None:
        if worker.position.steps_left == 0:
            worker.clock.epoch += 1
            worker.position.begin(worker.clock.epoch)
        worker.step()

    def rounds(worker: Worker) -> None:
        """Everything except the steps themselves, H times; the last time with a round."""
        for at in range(H):
            last = at == H - 1
            piggyback = worker.batch.observe(last) if worker.batch.watches else None
            if last:
                worker.sync.carry(piggyback)
                worker.sync.after_step(worker.flat.gather())
            if worker.batch.watches:
                worker.batch.settle()

    seconds: dict[str, list[float]] = {name: [] for name in ("step", *workers, *(f"{name}, clock" for name in workers))}
    for turn in range(turns + 2):
        for name, worker in workers.items():
            step(worker)  # leaves gradients, and caches as after a step
            barrier(comm)
            start, clock = time.process_time(), time.perf_counter()
            rounds(worker)
            spent, passed = time.process_time() - start, time.perf_counter() - clock
            start = time.process_time()
            step(worker)
            if turn > 1:
                seconds[name].append(spent)
                seconds[f"{name}, clock"].append(passed)
                seconds["step"].append(time.process_time() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name in ("fused", "pseudo"):
        for unit in ("", ", clock"):
            pairs = zip(seconds[name + unit], seconds["constant" + unit], strict=True)
            medians[name + unit] = statistics.median(a - b for a, b in pairs)
    return medians


def main() -> None:
    args = arguments(__doc__, workers=4, turns=150)
    rows: list[tuple[str, float, float | None]] = []
    for name, model, data in (("LeNet", lenet, pictures()), ("1M MLP", mlp, images())):
        per_worker = eq.spawn(lambda comm, m=model, d=data: measure(comm, m, d, args.turns), args.workers)
        times = {key: statistics.median(f[key] for f in per_worker) for key in per_worker[0]}
        print(f"{name}: " + ", ".join(f"{key} {1e3 * value:.2f} ms" for key, value in times.items()))
        goals = (0.03, 0.005) if name == "LeNet" else (None, None)
        for (rule, words), goal in zip(
            (("fused", "fused collective"), ("pseudo", "pseudo-gradient")), goals, strict=True
        ):
            rows.append((f"{name}: test / step at H = {H}, {words}", max(0.0, times[rule]) / H / times["step"], goal))
    report("Cost of the norm test", rows, args.json)


if __name__ == "__main__":
    main()
