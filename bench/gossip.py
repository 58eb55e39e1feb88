"""Gossip steps compared with torch DDP and decent-dp: 4 gloo processes, 1M-parameter MLP, batch 32, momentum SGD.

All candidates run in the same processes on the same group, a block of steps each in turn. `--socket 1` sends our
large messages through the sockets of gloo instead of shared memory. Bytes per step are counted by the ledger and
compared with the minimum: one vector to each neighbour.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import torch
from common import arguments, images, median_ratio, mlp, report, sgd
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import equipoise as eq
from equipoise.comm.base import Comm, barrier
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker

GOALS = {"D-PSGD ring": 0.85, "D-PSGD one-peer": 0.70, "DeTAG ring, one round": 1.2}


def ours(comm: Comm, sync: eq.sync.Sync, wire: eq.wire.Wire, block: int) -> tuple[Callable[[], None], Worker]:
    inputs, targets = images()
    data, loss = Source((inputs, targets)), nn.CrossEntropyLoss()
    job = Job(model=mlp, loss=loss, train=data, length=Length(epochs=1000), optimizer=sgd, sync=sync, wire=wire)
    worker = Worker(job, comm)
    worker.model.train()

    def run() -> None:
        for _ in range(block):
            if worker.position.steps_left == 0:
                worker.clock.epoch += 1
                worker.position.begin(worker.clock.epoch)
            worker.control.after(worker.step())

    return run, worker


def plain_loop(model: nn.Module, optimizer: torch.optim.Optimizer | None, block: int, rank: int) -> Callable[[], None]:
    inputs, targets = images()
    loss = nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(rank)

    def run() -> None:
        for _ in range(block):
            index = torch.randint(len(inputs), (32,), generator=generator)
            if optimizer is not None:
                optimizer.zero_grad()
            loss(model(inputs[index]), targets[index]).backward()
            if optimizer is not None:
                optimizer.step()

    return run


def peers(comm: Comm, block: int) -> dict[str, Callable[[], None]]:
    """decent-dp steps its own optimizer inside backward."""
    try:
        import sys

        from loguru import logger

        logger.remove()
        logger.add(sys.stderr, level="ERROR")
        from decent_dp.ddp import DecentralizedDataParallel
    except ImportError:
        if comm.rank == 0:
            print("decent-dp is not installed (pip install decent-dp loguru): left out")
        return {}
    made = {}
    for name, topology in (("decent-dp ring", "ring"), ("decent-dp one-peer", "one-peer-exp")):
        model = DecentralizedDataParallel(
            mlp(), lambda named: sgd([p for _, p in named]), topology=topology, _local_world_size=comm.size
        )
        model.train()
        made[name] = plain_loop(model, None, block, comm.rank)
    return made


def compare(comm: Comm, block: int, repetitions: int) -> tuple[dict[str, list[float]], dict[str, tuple[float, float]]]:
    model = DistributedDataParallel(mlp())
    candidates = {"DDP": plain_loop(model, sgd(model.parameters()), block, comm.rank)}
    workers = {}
    for name, sync in (
        ("all-reduce", eq.sync.AllReduce()),
        ("D-PSGD ring", eq.sync.DPSGD(eq.topology.Ring())),
        ("D-PSGD one-peer", eq.sync.DPSGD(eq.topology.OnePeer())),
        ("D-PSGD ring, bfloat16 on the wire", eq.sync.DPSGD(eq.topology.Ring())),
        ("D-PSGD ring, overlapped", eq.sync.DPSGD(eq.topology.Ring(), combine="before", overlap=True)),
        ("D2 ring", eq.sync.D2(eq.topology.Ring())),
        ("DSGT ring", eq.sync.DSGT(eq.topology.Ring())),
        ("DeTAG ring, one round", eq.sync.DeTAG(eq.topology.Ring())),
    ):
        wire = eq.wire.BFloat16() if "bfloat16" in name else eq.wire.Float32()
        candidates[name], workers[name] = ours(comm, sync, wire, block)
    candidates |= peers(comm, block)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(repetitions + 1):
        for name, run in candidates.items():
            barrier(comm)
            if name in workers:
                workers[name].comm.ledger.load_state_dict({"messages": 0, "bytes": 0})
            start = time.perf_counter()
            run()
            barrier(comm)
            if turn:
                seconds[name].append((time.perf_counter() - start) / block)
            if name in workers:
                workers[name].sent = comm.ledger.bytes / block  # type: ignore[attr-defined]
    vector = 4.0 * len(workers["all-reduce"].flat)
    return seconds, {name: (w.sent, w.sent / vector) for name, w in workers.items()}  # type: ignore[attr-defined]


def main() -> None:
    args = arguments(__doc__, workers=4, block=10, repetitions=15, socket=0)
    if args.socket:
        os.environ["EQUIPOISE_SHARED_MEMORY"] = "0"
    seconds, sent = eq.spawn(lambda comm: compare(comm, args.block, args.repetitions), args.workers)[0]
    if os.environ.get("RANK", "0") != "0":
        return
    channel = "sockets" if args.socket or "RANK" in os.environ else "shared memory"
    print(f"{args.workers} processes; large messages through {channel}")
    for name, values in seconds.items():
        extra = (
            f"   {sent[name][0]:12,.0f} bytes = {sent[name][1]:.3f} vectors per worker and step" if name in sent else ""
        )
        print(f"  {name:<36} {1e3 * statistics.median(values):7.2f} ms{extra}")
    rows = [
        (f"{name} / DDP", median_ratio(values, seconds["DDP"]), GOALS.get(name))
        for name, values in seconds.items()
        if name != "DDP"
    ]
    report("Gossip, ratios of one run", rows, args.json)


if __name__ == "__main__":
    main()
