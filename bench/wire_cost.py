"""What the wires cost in processor time: three models of about a million parameters, 4 workers, one thread.

A round of each wire (code, decode, residual, sum) on virtual workers, per worker, without the network. Compared with
16 steps on batches of 32 (one round at H = 16), and with the time that the smaller messages save on links of 1 Gbit/s.
The round of float32 (a copy and a sum) is taken off. An MLP computes least for each parameter, a transformer most.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch
from common import arguments, images, mlp, report, sgd
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.config.registry import entries, get
from equipoise.core.context import Context
from equipoise.core.vector import Flat
from equipoise.data.base import Arrays, LoadedData
from equipoise.loop.from_recipe import language_loss
from equipoise.models import ResNet, Transformer
from equipoise.wire.base import Wire

WORKERS, H, BATCH, BANDWIDTH = 4, 16, 32, 0.93e9 / 8
MODELS = ("MLP", "ResNet", "transformer")


def task(name: str) -> tuple[nn.Module, Any, torch.Tensor, torch.Tensor]:
    """A model, its loss, and a batch."""
    torch.manual_seed(0)
    if name == "MLP":
        inputs, targets = images(BATCH)
        return mlp(), nn.CrossEntropyLoss(), inputs, targets
    nothing = Arrays(np.zeros(0), np.zeros(0))
    if name == "ResNet":
        inputs, targets = torch.randn(BATCH, 3, 16, 16), torch.randint(10, (BATCH,))
        described = LoadedData(nothing, nothing, "classify", 10, (3, 16, 16))
        return ResNet(norm="group", width=58).build(described), nn.CrossEntropyLoss(), inputs, targets
    described = LoadedData(nothing, nothing, "language", 2000, (32,), tokens=2000)
    inputs = torch.randint(2000, (BATCH, 32))
    return Transformer(width=128, layers=4).build(described), language_loss, inputs, inputs


def rounds(wire: Wire, model: nn.Module, repetitions: int) -> tuple[float, int]:
    """Seconds of one round on one worker, and the bytes that it sends."""

    def loop(comm: Comm) -> tuple[float, int]:
        flat = Flat(model)
        context = Context(comm, flat=flat)
        progress = 1e-3 * torch.randn(len(flat), generator=torch.Generator().manual_seed(comm.rank))
        bound = wire.bind(context)
        channel = None if wire.plain else bound.sums("average")
        seconds = []
        for _ in range(repetitions + 1):
            sent = comm.ledger.bytes
            comm.gather_objects(None)  # all workers begin together
            began = time.process_time()
            if channel is None:
                comm.sum(progress.clone())
            else:
                channel.sum(progress, [1.0])
            comm.gather_objects(None)
            seconds.append((time.process_time() - began) / comm.size)
        return statistics.median(seconds[1:]), comm.ledger.bytes - sent

    result: tuple[float, int] = eq.spawn(loop, WORKERS, virtual=True)[0]
    return result


def step_seconds(name: str, repetitions: int) -> float:
    model, loss, inputs, targets = task(name)
    optimizer, seconds = sgd(model.parameters()), []
    for _ in range(2 * repetitions):
        began = time.process_time()
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


def main() -> None:
    given = arguments(__doc__ or "", repetitions=9)
    torch.set_num_threads(1)
    rows: list[tuple[str, float, float | None]] = []
    for name in MODELS:
        step = step_seconds(name, given.repetitions)
        plain, plain_bytes = rounds(eq.wire.Float32(), task(name)[0], given.repetitions)
        elements = sum(p.numel() for p in task(name)[0].parameters())
        print(f"{name}, {elements:,} parameters: a step {1e3 * step:.1f} ms; a round of float32 {1e3 * plain:.1f} ms")
        for entry in entries("wire"):
            if entry.name == "float32":
                continue
            seconds, sent = rounds(get("wire", entry.name)(), task(name)[0], given.repetitions)
            coding, saved = seconds - plain, (plain_bytes - sent) / BANDWIDTH
            print(
                f"{entry.name:>10}: {1e3 * seconds:6.2f} ms a round, {sent / 1e3:9.1f} kB per worker, "
                f"saves {1e3 * saved:.1f} ms at 1 Gbit/s"
            )
            rows.append((f"{name}, {entry.name}: coding / {H} steps", coding / (H * step), 0.05))
            rows.append((f"{name}, {entry.name}: coding / time saved at 1 Gbit/s", coding / saved, 0.25))
    report("coding and decoding", rows, given.json)


if __name__ == "__main__":
    main()
