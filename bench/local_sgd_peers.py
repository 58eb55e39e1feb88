"""Local SGD and DiLoCo compared with Accelerate and torchft: 4 gloo processes, 1M-parameter MLP, batch 32.

All run the same plain loop with momentum SGD and H = 16; only the hooks differ. Measured are the time per step over
complete rounds, and the time of a round alone (no training, all workers waiting). torchft is measured twice: `bare`,
its own code with a manager that only calls the all-reduce of gloo, and with its real manager, whose quorum and commit
before every round are the price of its fault tolerance. Peers that are not installed are left out: pip install
accelerate torchft
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from common import arguments, images, median_ratio, mlp, report, sgd
from torch import nn

import equipoise as eq
from equipoise.comm.base import Comm, barrier

H = 16


class Candidate(NamedTuple):
    steps: Callable[[int], None]  # so many steps of the loop
    round: Callable[[], object]  # one round by itself


def loop(
    model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, after: Callable[[], object] | None = None
) -> Callable[[int], None]:
    inputs, targets = images()
    loss, generator = nn.CrossEntropyLoss(), torch.Generator().manual_seed(rank)

    def run(steps: int) -> None:
        for _ in range(steps):
            index = torch.randint(len(inputs), (32,), generator=generator)
            optimizer.zero_grad()
            loss(model(inputs[index]), targets[index]).backward()
            optimizer.step()
            if after is not None:
                after()

    return run


def ours(comm: Comm, sync: Any, stack: contextlib.ExitStack) -> Candidate:
    model = mlp()
    optimizer = sgd(model.parameters())
    together = stack.enter_context(eq.attach(model, optimizer, sync=sync, period=H))

    def round() -> None:
        together.clock.due = True
        x = together.flat.gather()
        together.sync.before_step(x, None)
        together.sync.after_step(x)
        together.flat.scatter()

    return Candidate(loop(model, optimizer, comm.rank), round)


def accelerates(comm: Comm) -> Candidate:
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    # What `accelerate launch --cpu` tells its processes; the group exists already and is taken over.
    os.environ.update(
        RANK=str(comm.rank), WORLD_SIZE=str(comm.size), LOCAL_RANK=str(comm.rank), ACCELERATE_USE_CPU="true"
    )
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)  # it changes the setting of the process
    model = mlp()
    optimizer = sgd(model.parameters())
    local = LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=H, enabled=True)
    assert local.enabled
    return Candidate(loop(model, optimizer, comm.rank, local.step), local._sync_and_avg_model_params)


class Bare:
    """As much of a manager as torchft's hooks call, on the group at hand: an all-reduce and no quorum."""

    _use_async_quorum = False

    def __init__(self) -> None:
        self.rounds = 0

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False) -> Any:
        work = dist.all_reduce(tensor, async_op=True)
        return _Mean(work, tensor)

    def should_commit(self) -> bool:
        self.rounds += 1
        return True

    def current_step(self) -> int:
        return self.rounds

    def start_quorum(self, *args: Any, **kwargs: Any) -> None: ...

    def disallow_state_dict_read(self) -> None: ...

    def allow_state_dict_read(self) -> None: ...

    def register_state_dict_fn(self, *args: Any) -> None: ...


class _Mean:
    def __init__(self, work: Any, tensor: torch.Tensor):
        self.work, self.tensor = work, tensor

    def wait(self) -> None:
        self.work.wait()
        self.tensor.div_(dist.get_world_size())


def real_manager(comm: Comm, stack: contextlib.ExitStack) -> Any:
    """One replica per process, all under one lighthouse in worker 0."""
    from torchft import Manager, ProcessGroupGloo
    from torchft.coordination import LighthouseServer

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its lines about every quorum cannot be turned off otherwise
    for name in ("torchft", "torchft.manager", "torchft_quorums", "torchft_commits", "torchft_errors"):
        logging.getLogger(name).setLevel(logging.ERROR)
    house = LighthouseServer(bind="[::]:0", min_replicas=comm.size, join_timeout_ms=10_000) if comm.rank == 0 else None
    address = comm.gather_objects(house.address() if house is not None else None)[0]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=datetime.timedelta(seconds=30)),
        load_state_dict=lambda state: None,
        state_dict=dict,
        min_replica_size=comm.size,
        use_async_quorum=False,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=port,
        lighthouse_addr=address,
        replica_id=f"bench-{comm.rank}",
        hostname="127.0.0.1",
        init_sync=False,
    )
    stack.callback(lambda: (manager.shutdown(wait=False), barrier(comm), house and house.shutdown(), store))
    return manager


def torchfts(comm: Comm, manager: Any, diloco: bool, stack: contextlib.ExitStack) -> Candidate:
    from torchft.local_sgd import DiLoCo, LocalSGD

    model = mlp()
    optimizer = sgd(model.parameters())
    if not diloco:
        local = stack.enter_context(LocalSGD(manager, model, optimizer, sync_every=H))
        return Candidate(loop(model, optimizer, comm.rank), local.sync)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    streaming = stack.enter_context(DiLoCo(manager, [model], optimizer, outer, sync_every=H))
    fragment = streaming._fragments[0]

    def round() -> None:
        manager.start_quorum()
        fragment.prepare_sync()
        fragment.perform_sync()

    return Candidate(loop(model, optimizer, comm.rank), round)


def compare(comm: Comm, repetitions: int, rounds: int, real: bool) -> dict[str, tuple[list[float], list[float]]]:
    """Seconds per step and per round of every candidate, taken in turn."""
    with contextlib.ExitStack() as stack:
        candidates = {
            "ours": ours(comm, eq.sync.PeriodicAverage(), stack),
            "ours, DiLoCo": ours(comm, eq.sync.DiLoCo(), stack),
        }
        makers: dict[str, Callable[[], Candidate]] = {"Accelerate": lambda: accelerates(comm)}
        for diloco in (False, True):
            kind = "DiLoCo" if diloco else "LocalSGD"
            makers[f"torchft {kind}, bare"] = lambda d=diloco: torchfts(comm, Bare(), d, stack)
            if real:
                makers[f"torchft {kind}"] = lambda d=diloco: torchfts(comm, real_manager(comm, stack), d, stack)
        for name, make in makers.items():
            try:
                candidates[name] = make()
            except ImportError as error:
                if comm.rank == 0:
                    print(f"{name} is left out: {error}")
        timings: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in candidates}
        for turn in range(repetitions + 1):
            for name, candidate in candidates.items():
                barrier(comm)
                start = time.perf_counter()
                candidate.steps(H)
                barrier(comm)
                step = (time.perf_counter() - start) / H
                start = time.perf_counter()
                for _ in range(rounds):
                    candidate.round()
                spent = (time.perf_counter() - start) / rounds
                if turn:
                    timings[name][0].append(step)
                    timings[name][1].append(spent)
        barrier(comm)
        return timings


def main() -> None:
    args = arguments(__doc__, workers=4, repetitions=40, rounds=4, real=1)
    timings = eq.spawn(lambda comm: compare(comm, args.repetitions, args.rounds, bool(args.real)), args.workers)[0]
    rows: list[tuple[str, float, float | None]] = []
    for name, (steps, rounds) in timings.items():
        step_ms, round_ms = 1e3 * statistics.median(steps), 1e3 * statistics.median(rounds)
        print(f"{name:<24} step {step_ms:7.2f} ms   round {round_ms:7.2f} ms")
        if name.startswith("ours"):
            continue
        mine = timings["ours, DiLoCo" if "DiLoCo" in name else "ours"]
        rows.append((f"our step / {name}'s", median_ratio(mine[0], steps), 1.0))
        rows.append((f"our round / {name}'s", median_ratio(mine[1], rounds), 1.0))
    report("Local SGD and DiLoCo, 4 gloo processes, H = 16", rows, args.json)


if __name__ == "__main__":
    main()
