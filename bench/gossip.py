"""Gossip steps compared with torch DDP and decent-dp: 4 gloo processes, 1M-parameter MLP, batch 32, momentum SGD.

All candidates run in the same processes on the same group, a block of steps each in turn; the slowest worker counts.
`--socket 1` sends our large messages through the sockets of gloo instead of shared memory. `--rate 1gbit` (or 100mbit,
...; needs root) runs every worker in a network namespace with a link of that rate, with only the methods that decent-dp
has. Bytes per step are counted by the ledger and compared with the minimum: one vector to each neighbour. `--table F`
adds the run to the file that docs/make_tables.py reads. `--only "D2 ring;DSGT ring"` runs these of our methods.

decent-dp combines, then adapts, and its messages travel while the next gradient is computed: our combine = "before"
with overlap does the same. Both its graphs are pairs with weight 1/2 that change in every round, also its ring; base-k
is the like graph. Our ring has two neighbours in every round, and so sends twice the bytes.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import namespaces
import torch
from common import arguments, images, median_ratio, mlp, report, sgd
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import equipoise as eq
from equipoise.comm.base import Comm
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker

GOALS = {"D-PSGD ring": 0.85, "D-PSGD one-peer": 0.70, "DeTAG ring, one round": 1.2}
LEAD = 2  # steps before each block, so that it begins as it ends: with a message just sent
LINKS = {"1gbit": 0.065, "100mbit": 0.65, "10mbit": 6.5}  # seconds that a link needs for two vectors
PEERS = {
    "D-PSGD ring": ("decent-dp ring", None),
    "D-PSGD ring, overlapped": ("decent-dp ring", None),
    "D-PSGD base-k, overlapped": ("decent-dp ring", 1.0),
    "D-PSGD one-peer": ("decent-dp one-peer", None),
    "D-PSGD one-peer, overlapped": ("decent-dp one-peer", 1.0),
}  # of decent-dp the like candidate, and the goal where both send the same bytes


def candidates_of_ours(rate: str) -> dict[str, eq.sync.Sync]:
    before = {"combine": "before", "overlap": True}
    gossip: dict[str, eq.sync.Sync] = {
        "D-PSGD ring, overlapped": eq.sync.DPSGD(eq.topology.Ring(), **before),
        "D-PSGD base-k, overlapped": eq.sync.DPSGD(eq.topology.BaseK(), **before),
        "D-PSGD one-peer, overlapped": eq.sync.DPSGD(eq.topology.OnePeer(), **before),
    }
    if rate:
        return gossip
    return gossip | {
        "D-PSGD ring": eq.sync.DPSGD(eq.topology.Ring()),
        "D-PSGD one-peer": eq.sync.DPSGD(eq.topology.OnePeer()),
        "all-reduce": eq.sync.AllReduce(),
        "D2 ring": eq.sync.D2(eq.topology.Ring()),
        "DSGT ring": eq.sync.DSGT(eq.topology.Ring()),
        "DeTAG ring, one round": eq.sync.DeTAG(eq.topology.Ring()),
    }


def ours(comm: Comm, sync: eq.sync.Sync) -> tuple[Callable[[int], None], Worker]:
    inputs, targets = images()
    data, loss = Source((inputs, targets)), nn.CrossEntropyLoss()
    job = Job(model=mlp, loss=loss, train=data, length=Length(epochs=1000), optimizer=sgd, sync=sync)
    worker = Worker(job, comm)
    worker.model.train()

    def run(steps: int) -> None:
        for _ in range(steps):
            if worker.position.steps_left == 0:
                worker.clock.epoch += 1
                worker.position.begin(worker.clock.epoch)
            start = time.perf_counter()
            loss = worker.step()
            worker.clock.seconds += time.perf_counter() - start
            worker.control.after(loss)

    return run, worker


def plain_loop(model: nn.Module, optimizer: torch.optim.Optimizer | None, rank: int) -> Callable[[int], None]:
    inputs, targets = images()
    loss = nn.CrossEntropyLoss()
    generator = torch.Generator().manual_seed(rank)

    def run(steps: int) -> None:
        for _ in range(steps):
            index = torch.randint(len(inputs), (32,), generator=generator)
            if optimizer is not None:
                optimizer.zero_grad()
            loss(model(inputs[index]), targets[index]).backward()
            if optimizer is not None:
                optimizer.step()

    return run


def peers(comm: Comm) -> dict[str, Callable[[int], None]]:
    """decent-dp steps its own optimizer inside backward."""
    try:
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
        made[name] = plain_loop(model, None, comm.rank)
    return made


def compare(
    comm: Comm, block: int, repetitions: int, rate: str, only: str
) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, tuple[float, float]]]:
    model = DistributedDataParallel(mlp())
    candidates = {"DDP": plain_loop(model, sgd(model.parameters()), comm.rank)}
    workers = {}
    for name, sync in candidates_of_ours(rate).items():
        if not only or name in only.split(";"):
            candidates[name], workers[name] = ours(comm, sync)
    candidates |= {} if only else peers(comm)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    busy: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(repetitions + 1):
        for name, run in candidates.items():
            run(LEAD)
            if name in workers:
                workers[name].comm.ledger.load_state_dict({"messages": 0, "bytes": 0})
            start, busy_before = time.perf_counter(), time.process_time()
            run(block)
            spent = torch.tensor((time.perf_counter() - start) / block)
            used = torch.tensor((time.process_time() - busy_before) / block)
            if name in workers:
                workers[name].sent = comm.ledger.bytes / block  # type: ignore[attr-defined]
            time.sleep(LINKS.get(rate, 0.02))  # a message in flight must not delay the next candidate
            with comm.uncounted():
                slowest, mean = float(comm.gather(spent).max()), float(comm.gather(used).mean())
            if turn:
                seconds[name].append(slowest)
                busy[name].append(mean)
    vector = 4.0 * len(next(iter(workers.values())).flat)
    return seconds, busy, {name: (w.sent, w.sent / vector) for name, w in workers.items()}  # type: ignore[attr-defined]


def main() -> None:
    args = arguments(__doc__, workers=4, block=10, repetitions=15, socket=0, rate="", table="", only="")
    if args.rate and "RANK" not in os.environ:
        namespaces.remove(args.workers)
        try:
            namespaces.make(args.workers, args.rate)
            print(namespaces.measure(os.path.abspath(__file__), sys.argv[1:], args.workers))
        finally:
            namespaces.remove(args.workers)
        return
    if args.socket:
        os.environ["EQUIPOISE_SHARED_MEMORY"] = "0"
    seconds, busy, sent = eq.spawn(
        lambda comm: compare(comm, args.block, args.repetitions, args.rate, args.only), args.workers
    )[0]
    if os.environ.get("RANK", "0") != "0":
        return
    channel = f"links of {args.rate}" if args.rate else "sockets" if args.socket else "shared memory"
    print(f"{args.workers} processes; large messages through {channel}")
    for name, values in seconds.items():
        extra = (
            f"   {sent[name][0]:12,.0f} bytes = {sent[name][1]:.3f} vectors per worker and step" if name in sent else ""
        )
        processor = f"{1e3 * statistics.median(busy[name]):7.2f} ms of processor time"
        print(f"  {name:<36} {1e3 * statistics.median(values):7.2f} ms {processor}{extra}")
    rows = [
        (f"{name} / DDP", median_ratio(values, seconds["DDP"]), GOALS.get(name) if not args.rate else None)
        for name, values in seconds.items()
        if name != "DDP"
    ]
    rows += [
        (f"{name} / {peer}", median_ratio(seconds[name], seconds[peer]), goal)
        for name, (peer, goal) in PEERS.items()
        if peer in seconds and name in seconds
    ]
    report("Gossip, ratios of one run", rows, args.json)
    if args.table:  # for docs/make_tables.py: one section for each network, those of other runs are kept
        path = Path(args.table)
        sections = json.loads(path.read_text()) if path.exists() else {}
        vectors = {name: round(both[1], 3) for name, both in sent.items()}
        ratios = {name: round(value, 4) for name, value, _ in rows}
        sections[args.rate or "one host"] = {"ratios": ratios, "vectors": vectors}
        path.write_text(json.dumps(sections, indent=1) + "\n")


if __name__ == "__main__":
    main()
