"""Our all-reduce compared with torch DDP: 4 gloo processes, 1M-parameter MLP, batch 32, momentum SGD.

Both run in the same processes on the same group, a block of steps each in turn.
"""

from __future__ import annotations

import statistics
import time

import torch
from common import arguments, images, median_ratio, mlp, report, sgd
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import equipoise as eq
from equipoise.comm.base import Comm, barrier
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker


def compare(comm: Comm, block: int, repetitions: int) -> list[tuple[float, float]]:
    inputs, targets = images()
    loss = nn.CrossEntropyLoss()
    peer = DistributedDataParallel(mlp())
    optimizer = sgd(peer.parameters())
    generator = torch.Generator().manual_seed(comm.rank)
    job = Job(model=mlp, loss=loss, train=Source((inputs, targets)), length=Length(epochs=1000), optimizer=sgd)
    worker = Worker(job, comm)
    worker.model.train()

    def ddp() -> None:
        for _ in range(block):
            index = torch.randint(len(inputs), (32,), generator=generator)
            optimizer.zero_grad()
            loss(peer(inputs[index]), targets[index]).backward()
            optimizer.step()

    def ours() -> None:
        for _ in range(block):
            if worker.position.steps_left == 0:
                worker.clock.epoch += 1
                worker.position.begin(worker.clock.epoch)
            worker.control.after(worker.step())

    rows = []
    for turn in range(repetitions + 1):
        pair = []
        for function in (ours, ddp):
            barrier(comm)
            start = time.perf_counter()
            function()
            barrier(comm)
            pair.append((time.perf_counter() - start) / block)
        if turn:
            rows.append((pair[0], pair[1]))
    return rows


def main() -> None:
    args = arguments(__doc__, workers=4, block=20, repetitions=15)
    rows = eq.spawn(lambda comm: compare(comm, args.block, args.repetitions), args.workers)[0]
    mine, peers = [a for a, _ in rows], [b for _, b in rows]
    print(f"DDP step {1e3 * statistics.median(peers):.1f} ms, ours {1e3 * statistics.median(mine):.1f} ms (medians)")
    report("All-reduce, 4 gloo processes", [("our step / DDP step", median_ratio(mine, peers), 1.05)], args.json)


if __name__ == "__main__":
    main()
