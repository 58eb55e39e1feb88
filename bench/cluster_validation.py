"""Predicted and measured time: four real processes on limited links, and the same steps on a described cluster.

    sudo python cluster_validation.py --rates 1gbit,100mbit

For each rate: one process per network namespace (see namespaces.py), a token bucket on both ends of its link,
declared slow-downs (`slow`, as sleep). The workers measure their throughput, all at the same time; then each method
takes some steps. The prediction uses only these rates, the nominal links and the latency of a small message: it is
the simulated time of the same steps on virtual workers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import namespaces
import torch
from common import images, mlp, report, sgd
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm, barrier
from equipoise.core.torchrun import under_torchrun
from equipoise.data.source import Source
from equipoise.loop.job import Job, Length
from equipoise.loop.worker import Worker
from equipoise.simulate.cluster import Link

GOAL = 0.15
METHODS: dict[str, tuple[Any, int]] = {
    "none": (eq.sync.NoSync, 1),
    "all-reduce": (eq.sync.AllReduce, 1),
    "Local SGD, period 8": (eq.sync.PeriodicAverage, 8),
    "D-PSGD ring": (eq.sync.DPSGD, 1),
    "DeTAG ring": (eq.sync.DeTAG, 1),
    "LGRAWA, period 8": (eq.sync.LGRAWA, 8),
}


def job_of(args: argparse.Namespace, name: str, described: bool) -> Job:
    sync, period = METHODS[name]
    return Job(
        model=mlp,
        loss=nn.CrossEntropyLoss(),
        train=Source(images(args.batch * args.workers * 64)),
        length=Length(epochs=1000),
        optimizer=sgd,
        batch=eq.batch.Fixed(args.batch),
        period=eq.period.Every(period),
        sync=sync(),
        # The rates of a described cluster are those of the slowed workers.
        slow=None if described else args.slow,
        described=described,
    )


def advance(worker: Worker, steps: int) -> None:
    for _ in range(steps):
        if worker.position.steps_left == 0:
            worker.clock.epoch += 1
            worker.position.begin(worker.clock.epoch)
        worker.step()


def measured(comm: Comm, args: argparse.Namespace) -> dict[str, Any]:
    """Rates of the workers and seconds per step of each method, as all workers know them."""
    rates = [own_rate(comm, args)]
    measurement: dict[str, Any] = {}
    for name in METHODS:
        if name == "none":
            continue
        worker = Worker(job_of(args, name, False), comm)
        worker.model.train()
        advance(worker, 8)  # the first steps open connections and touch memory
        seconds = []
        for _ in range(args.repetitions):
            barrier(comm)
            started = time.perf_counter()
            advance(worker, args.steps)
            barrier(comm)
            seconds.append((time.perf_counter() - started) / args.steps)
        measurement[name] = statistics.median(seconds)
    rates.append(own_rate(comm, args))
    latency = statistics.median(small_messages(comm))
    mean = [statistics.harmonic_mean(row) for row in zip(*map(comm.gather_objects, rates), strict=True)]
    return {"rates": mean, "latency": latency, "seconds": measurement}


def own_rate(comm: Comm, args: argparse.Namespace) -> float:
    """Examples per second of this worker's loop, with all workers running and none waiting."""
    worker = Worker(job_of(args, "none", False), comm)
    worker.model.train()
    advance(worker, 8)
    steps = 0
    barrier(comm)
    started = time.perf_counter()
    while (spent := time.perf_counter() - started) < 4.0:
        advance(worker, 1)
        steps += 1
    return steps * args.batch / spent


def small_messages(comm: Comm) -> list[float]:
    """Seconds of one message of one number, with the software that sends it: from exchanges over the ring."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out, box, measurement = torch.zeros(1), torch.zeros(1), []
    for _ in range(50):
        barrier(comm)
        started = time.perf_counter()
        for _ in range(10):
            comm.exchange({right: out}, {left: box}).wait()
        measurement.append((time.perf_counter() - started) / 10)
    return measurement


def predicted(args: argparse.Namespace, cluster: eq.Cluster, name: str) -> float:
    def work(comm: Comm) -> float:
        worker = Worker(job_of(args, name, True), comm)
        worker.model.train()
        advance(worker, 8)
        barrier(comm)
        started = max(comm.gather_objects(comm.now))
        advance(worker, args.steps)
        return max(comm.gather_objects(comm.now)) - started

    return eq.spawn(work, args.workers, virtual=True, cluster=cluster)[0] / args.steps


def validate(args: argparse.Namespace, rate: str) -> list[tuple[str, float, float | None]]:
    namespaces.remove(args.workers)
    try:
        namespaces.make(args.workers, rate)
        measurement = json.loads(namespaces.measure(str(Path(__file__).resolve()), sys.argv[1:], args.workers))
    finally:
        namespaces.remove(args.workers)
    bits = float(rate.removesuffix("bit").removesuffix("m").removesuffix("g")) * (1e9 if "g" in rate else 1e6)
    cluster = eq.Cluster(measurement["rates"], Link(bits, measurement["latency"]))
    rates = ", ".join(f"{r:.0f}" for r in measurement["rates"])
    print(f"\n== links of {rate}: {rates} examples per second, {1e6 * measurement['latency']:.0f} us per message")
    print(f"  {'':<22}{'measured ms':>12}{'predicted ms':>13}{'predicted / measured':>22}")
    rows: list[tuple[str, float, float | None]] = []
    for name, seconds in measurement["seconds"].items():
        guess = predicted(args, cluster, name)
        print(f"  {name:<22}{1e3 * seconds:12.1f}{1e3 * guess:13.1f}{guess / seconds:22.3f}", flush=True)
        rows.append((f"{rate} {name}: |predicted - measured| / measured", abs(guess / seconds - 1.0), GOAL))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="1gbit,100mbit")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--slow", default="3,3,4,6", help="how many times longer each worker takes")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    args.slow = [float(word) for word in args.slow.split(",")]
    torch.set_num_threads(1)
    if under_torchrun():
        measurement = eq.spawn(lambda comm: measured(comm, args), args.workers)[0]
        print(json.dumps(measurement), flush=True)
        return
    rows = [row for rate in args.rates.split(",") for row in validate(args, rate)]
    report("prediction of the time of a step", rows, args.json)


if __name__ == "__main__":
    main()
