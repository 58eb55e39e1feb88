"""What the wires cost in processor time: 1M-parameter MLP, 4 workers, one thread.

A round of each wire (code, decode, residual, sum) on virtual workers, per worker, without the network. Compared with
16 steps on batches of 32 (one round at H = 16), and with the time that the smaller messages save on links of 1 Gbit/s.
A round of float32 (a copy and a sum) is measured beside them.
"""

from __future__ import annotations

import statistics
import time

import torch
from common import arguments, images, mlp, report, sgd
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.config.registry import entries, get
from equipoise.core.context import Context
from equipoise.core.vector import Flat
from equipoise.wire.base import Wire

WORKERS, H, BANDWIDTH = 4, 16, 0.93e9 / 8


def rounds(wire: Wire, repetitions: int) -> tuple[float, int]:
    """Seconds of one round on one worker, and the bytes that it sends."""

    def loop(comm: Comm) -> tuple[float, int]:
        flat = Flat(mlp())
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


def step_seconds(repetitions: int) -> float:
    model, (inputs, targets), loss = mlp(), images(), nn.CrossEntropyLoss()
    optimizer, seconds = sgd(model.parameters()), []
    for turn in range(16 * repetitions):
        began = time.process_time()
        optimizer.zero_grad()
        loss(model(inputs[turn % 100 : turn % 100 + 32]), targets[turn % 100 : turn % 100 + 32]).backward()
        optimizer.step()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


def main() -> None:
    given = arguments(__doc__ or "", repetitions=9)
    torch.set_num_threads(1)
    step = step_seconds(given.repetitions)
    plain, plain_bytes = rounds(eq.wire.Float32(), given.repetitions)
    print(f"a step {1e3 * step:.1f} ms; a round of float32 {1e3 * plain:.1f} ms, {plain_bytes / 1e6:.2f} MB per worker")
    rows: list[tuple[str, float, float | None]] = []
    for entry in entries("wire"):
        if entry.name == "float32":
            continue
        seconds, sent = rounds(get("wire", entry.name)(), given.repetitions)
        saved = (plain_bytes - sent) / BANDWIDTH
        print(
            f"{entry.name:>10}: {1e3 * seconds:6.2f} ms a round, {sent / 1e3:9.1f} kB per worker, "
            f"saves {1e3 * saved:.1f} ms at 1 Gbit/s"
        )
        rows.append((f"{entry.name}: round / {H} steps", seconds / (H * step), 0.05))
        rows.append((f"{entry.name}: round / time saved at 1 Gbit/s", seconds / saved, 0.25))
    report("code, decode and sum", rows, given.json)


if __name__ == "__main__":
    main()
