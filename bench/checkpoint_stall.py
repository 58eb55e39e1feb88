"""What a checkpoint costs the loop that goes on: MLPs of 1M and 10M parameters, a transformer of 1M; batch 32, SGD.

In one run, stretches of steps that begin with a checkpoint alternate with stretches that do not; the ratio of their
times is what a checkpoint every so many steps costs. `--workers 2` shares the two cores of a small machine between two
workers, so that nothing is left over for the threads that write. The call copies the state, so beside a step it costs
most where a model computes least for each parameter: in an MLP.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import arguments, images, mlp, report, sgd
from torch import nn
from wire_cost import task

import equipoise as eq


def large() -> nn.Module:
    """10,017,010 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 2792), nn.ReLU(), nn.Linear(2792, 2792), nn.ReLU(), nn.Linear(2792, 10))


def transformer() -> nn.Module:
    """1,053,440 parameters."""
    return task("transformer")[0]


def stretches(make: object, steps: int, turns: int, workers: int, wait: bool) -> tuple[list[float], list[float], float]:
    """Seconds of stretches with and without a checkpoint, and the median seconds of the call itself."""
    inputs, targets = images(1024)
    loss: Any = nn.CrossEntropyLoss()
    if make is transformer:
        _, loss, tokens, _ = task("transformer")
        inputs = targets = tokens.repeat(32, 1)

    def loop(comm: object) -> tuple[list[float], list[float], float]:
        torch.set_num_threads(1)
        model = make()  # type: ignore[operator]
        optimizer = sgd(model.parameters())
        times: dict[bool, list[float]] = {True: [], False: []}
        calls = []
        with tempfile.TemporaryDirectory() as folder:
            shared = comm.gather_objects(folder)[0]  # type: ignore[attr-defined]
            with eq.attach(model, optimizer, log=Path(shared) / "run", keep=1) as together:
                for turn in range(2 * turns + 4):  # the first ones warm up
                    saves = turn % 2 == 0
                    began = time.perf_counter()
                    if saves and turn:
                        together.checkpoint(wait=wait)
                        calls.append(time.perf_counter() - began)
                    for i in range(steps):
                        index = torch.arange(32 * i, 32 * i + 32) % len(inputs)
                        optimizer.zero_grad()
                        loss(model(inputs[index]), targets[index]).backward()
                        optimizer.step()
                    if turn >= 4:
                        times[saves].append(time.perf_counter() - began)
        return times[True], times[False], statistics.median(calls[1:])

    results = eq.spawn(loop, workers, virtual=workers == 1)
    first: tuple[list[float], list[float], float] = results[0]
    return first


def main() -> None:
    args = arguments(__doc__, steps=20, turns=15, workers=1)
    rows: list[tuple[str, float, float | None]] = []
    for name, make in (("MLP, 1M", mlp), ("MLP, 10M", large), ("transformer, 1M", transformer)):
        for how, wait in (("", False), (", waited for", True)):
            turns = args.turns if make is mlp else max(3, args.turns // 3)
            saved, plain, call = stretches(make, args.steps, turns, args.workers, wait)
            step = statistics.median(plain) / args.steps
            ratio = statistics.median(saved) / statistics.median(plain)
            goal = None if wait else 1.05
            rows.append((f"{name}: {args.steps} steps with a checkpoint{how} / without", ratio, goal))
            rows.append(
                (
                    f"{name}: the call that begins it{how} / a step of {1e3 * step:.1f} ms",
                    call / step,
                    None if wait else 0.05,
                )
            )
    report(f"Checkpoints, {args.workers} worker(s)", rows, args.json)


if __name__ == "__main__":
    main()
