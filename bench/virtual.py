"""16 virtual workers against 16 plain steps, and the memory they take: 1M-parameter MLP, batch 32, SGD with momentum."""

from __future__ import annotations

import gc
import os
import statistics
import time

import torch
from common import arguments, images, median_ratio, mlp, report, sgd
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    args = arguments(__doc__, workers=16, block=4, repetitions=9)
    torch.set_num_threads(1)
    inputs, targets = images()
    loss = nn.CrossEntropyLoss()
    job = Job(model=mlp, loss=loss, train=Source((inputs, targets)), length=Length(epochs=1000), optimizer=sgd)
    plain = mlp()
    optimizer = sgd(plain.parameters())

    def plain_steps() -> None:
        for _ in range(args.workers * args.block):
            index = torch.randint(len(inputs), (32,))
            optimizer.zero_grad()
            loss(plain(inputs[index]), targets[index]).backward()
            optimizer.step()

    plain_steps()
    gc.collect()
    before = resident()
    marks: list[tuple[float, float]] = []
    memory: list[int] = []

    def loop(comm: Comm) -> None:
        worker = Worker(job, comm)
        worker.model.train()
        for turn in range(args.repetitions + 1):
            comm.gather_objects(None)
            start = time.perf_counter()
            for _ in range(args.block):
                if worker.position.steps_left == 0:
                    worker.clock.epoch += 1
                    worker.position.begin(worker.clock.epoch)
                worker.control.after(worker.step())
            comm.gather_objects(None)
            if comm.rank == 0:
                ours = time.perf_counter() - start
                gc.collect()
                memory.append(resident() - before)
                start = time.perf_counter()
                plain_steps()
                if turn:
                    marks.append((ours, time.perf_counter() - start))

    eq.launch(loop, args.workers, virtual=True)
    mine, hand = [a for a, _ in marks], [b for _, b in marks]
    vector = sum(p.numel() for p in plain.parameters()) * 4
    # Model, gradient and momentum are what a plain loop of each worker would hold.
    extra = (max(memory) - 3 * vector * args.workers) / (vector * args.workers)
    print(f"16 plain steps {1e3 * statistics.median(hand) / args.block:.0f} ms, ours {1e3 * statistics.median(mine) / args.block:.0f} ms")
    report(
        f"{args.workers} virtual workers",
        [
            ("virtual workers' step / as many plain steps", median_ratio(mine, hand), 1.15),
            ("vectors per worker beyond model, gradient and momentum", extra, 1.0),
        ],
        args.json,
    )


if __name__ == "__main__":
    main()
