"""One worker of wire_time.py: the candidates, a loop that is the same for all of them, and snapshots of the model.

On a limited network every step first sleeps, so that a batch of 32 takes `--step-seconds` divided by the worker's
speed. What sends or waits comes on top. A snapshot goes to a file, with the seconds of training so far and the bytes
that have left the network interface; writing it does not count.
"""

from __future__ import annotations

import contextlib
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from local_sgd_peers import Bare
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

BATCH = 32
EVERY = 8  # steps between snapshots
SPEEDS = {"equal": (1.0, 1.0, 1.0, 1.0), "unequal": (1.0, 1.0, 2.0, 4.0)}


class Case(NamedTuple):
    """One run. `rate` is empty where only the number of steps is of interest: then nobody sleeps."""

    name: str
    rate: str
    speeds: str
    seed: int
    lr: float
    period: int = 1
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    delay: int = 0  # steps that a message overlaps with
    step_seconds: float = 0.03
    most_steps: int = 600
    timed: bool = False  # only the seconds of so many steps are of interest: no snapshots

    @property
    def warm(self) -> int:
        """Steps before those that are all alike: PowerSGD sends gradients as they are at first."""
        return max(self.period, 4)


class Trainee(NamedTuple):
    model: nn.Module
    step: Callable[[], None]


class Task(NamedTuple):
    case: Case
    inputs: torch.Tensor
    targets: torch.Tensor
    rank: int
    size: int
    stack: contextlib.ExitStack

    def model(self) -> nn.Module:
        torch.manual_seed(self.case.seed)
        return network(self.inputs.shape[1])

    def sgd(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.case.lr, momentum=0.9)

    def sleeper(self, batch: int) -> Callable[[], None]:
        """Sleeps for what a step of this batch takes beyond its real computation, as measured with all workers busy."""
        case = self.case
        if not case.rate:
            return lambda: None
        model = self.model()
        optimizer, loss, seconds = self.sgd(model.parameters()), nn.CrossEntropyLoss(), []
        for _ in range(20):
            started = time.perf_counter()
            optimizer.zero_grad()
            loss(model(self.inputs[:batch]), self.targets[:batch]).backward()
            optimizer.step()
            seconds.append(time.perf_counter() - started)
        whole = case.step_seconds * batch / BATCH / SPEEDS[case.speeds][self.rank]
        rest = max(0.0, whole - statistics.median(seconds))
        return lambda: time.sleep(rest)

    def batches(self) -> Iterator[torch.Tensor]:
        """As the peers' users do it: torch's sampler and equal batches."""
        sampler: DistributedSampler[Any] = DistributedSampler(
            range(len(self.inputs)),
            self.size,
            self.rank,
            seed=self.case.seed,  # type: ignore[arg-type]
        )
        epoch = 0
        while True:
            sampler.set_epoch(epoch)
            yield from torch.tensor(list(sampler)).split(BATCH)
            epoch += 1


def network(inputs: int) -> nn.Module:
    """1,001,540 parameters for 768 inputs."""
    return nn.Sequential(nn.Linear(inputs, 1000), nn.ReLU(), nn.Linear(1000, 230), nn.ReLU(), nn.Linear(230, 10))


def loop(task: Task, model: nn.Module, optimizer: Any, after: Callable[[], object] | None = None) -> Trainee:
    loss, batches, sleep = nn.CrossEntropyLoss(), task.batches(), task.sleeper(BATCH)

    def step() -> None:
        index = next(batches)
        sleep()
        if optimizer is not None:
            optimizer.zero_grad()
        loss(model(task.inputs[index]), task.targets[index]).backward()
        if optimizer is not None:
            optimizer.step()
        if after is not None:
            after()

    return Trainee(model, step)


# -- the peers ---------------------------------------------------------------------------------------------------------
def ddp(task: Task, hook: str = "", rank: int = 0) -> Trainee:
    """The PowerSGD hook sends from callbacks on gloo's threads: with several buckets their all-reduces meet in another
    order on every worker, and the run hangs or aborts. It needs one bucket, `bucket_cap_mb` above the model's size.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if not hook:
        model = DistributedDataParallel(task.model())
    else:
        model = DistributedDataParallel(task.model(), bucket_cap_mb=1000)
        if hook == "bf16":
            # torch refuses its bf16 hook, by name, where there is no CUDA; gloo can do it.
            model.register_comm_hook(
                dist.group.WORLD, lambda group, bucket: default_hooks.bf16_compress_hook(group, bucket)
            )
        else:
            state = powerSGD_hook.PowerSGDState(
                dist.group.WORLD, matrix_approximation_rank=rank, start_powerSGD_iter=2, min_compression_rate=0.5
            )
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return loop(task, model, task.sgd(model.parameters()))


def accelerate(task: Task) -> Trainee:
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    os.environ.update(ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)  # it changes the setting of the process
    model = task.model()
    local = LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=task.case.period, enabled=True)
    assert local.enabled
    return loop(task, model, task.sgd(model.parameters()), local.step)


def torchft(task: Task, diloco: bool) -> Trainee:
    """Without quorum and commit, the price of its fault tolerance: the manager only calls gloo's all-reduce."""
    from torchft.local_sgd import DiLoCo, LocalSGD

    logging.getLogger("torchft").setLevel(logging.ERROR)
    case, model = task.case, task.model()
    optimizer = task.sgd(model.parameters())
    if not diloco:
        task.stack.enter_context(LocalSGD(Bare(), model, optimizer, sync_every=case.period))
    else:
        outer = torch.optim.SGD(
            model.parameters(), lr=case.outer_lr, momentum=case.outer_momentum, nesterov=case.outer_momentum > 0
        )
        task.stack.enter_context(
            DiLoCo(
                Bare(),
                [model],
                optimizer,
                outer,
                sync_every=case.period,
                use_bucketization=False,  # type: ignore
            )
        )
    return loop(task, model, optimizer)


def decent(task: Task, topology: str) -> Trainee:
    """Steps its own optimizer inside backward, and mixes while the next step is computed."""
    from loguru import logger

    logger.remove()
    logger.add(sys.stderr, level="ERROR")
    from decent_dp.ddp import DecentralizedDataParallel

    model = DecentralizedDataParallel(
        task.model(), lambda named: task.sgd([p for _, p in named]), topology=topology, _local_world_size=1
    )
    model.train()
    return loop(task, model, None)


# -- ours --------------------------------------------------------------------------------------------------------------
def ours(task: Task, make_sync: Callable[[Any, Case], Any], make_wire: Callable[[Any], Any] | None) -> Trainee:
    """Batches in proportion to the speeds, which are given; equal ones where the speeds are equal."""
    import equipoise as eq

    case, model = task.case, task.model()
    optimizer, loss = task.sgd(model.parameters()), nn.CrossEntropyLoss()
    speeds = list(SPEEDS[case.speeds])
    sampler = eq.Sampler(
        (task.inputs, task.targets),
        partition=eq.partition.IID(speeds=speeds),
        batch=eq.batch.Proportional(mean=BATCH),
        seed=case.seed,
    )
    wire = {} if make_wire is None else {"wire": make_wire(eq.wire)}
    attached = eq.attach(
        model, optimizer, sync=make_sync(eq.sync, case), period=case.period, sampler=sampler, seed=case.seed, **wire
    )
    task.stack.enter_context(attached)
    sleep = task.sleeper(sampler.batch.sizes()[task.rank])

    def batches() -> Iterator[list[int]]:
        while True:
            yield from sampler

    drawn = batches()

    def step() -> None:
        index = next(drawn)
        sleep()
        optimizer.zero_grad()
        loss(model(task.inputs[index]), task.targets[index]).backward()
        optimizer.step()

    return Trainee(model, step)


def diloco(sync: Any, case: Case) -> Any:
    momentum = case.outer_momentum
    return sync.DiLoCo(lr=case.outer_lr, momentum=momentum, nesterov=momentum > 0, delay=case.delay)


SYNCS: dict[str, Callable[[Any, Case], Any]] = {
    "all-reduce": lambda sync, case: sync.AllReduce(),
    "periodic average": lambda sync, case: sync.PeriodicAverage(),
    "DiLoCo": diloco,
    "DiLoCo overlapped": diloco,
}
WIRES: dict[str, Callable[[Any], Any] | None] = {
    "float32": None,
    "int4": lambda wire: wire.Int4(),
    "top-k": lambda wire: wire.TopK(keep=1 / 64, values=2),
    "top-k, SparseLoCo": lambda wire: wire.TopK(keep=1 / 64, values=2, feedback=0.95, residual="feedback"),
    "PowerSGD 2": lambda wire: wire.PowerSGD(rank=2),
}
PEERS: dict[str, Callable[[Task], Trainee]] = {
    "DDP": ddp,
    "DDP + bf16 hook": lambda task: ddp(task, "bf16"),
    "DDP + PowerSGD hook 1": lambda task: ddp(task, "power", 1),
    "DDP + PowerSGD hook 2": lambda task: ddp(task, "power", 2),
    "DDP + PowerSGD hook 4": lambda task: ddp(task, "power", 4),
    "decent-dp ring": lambda task: decent(task, "ring"),
    "decent-dp one-peer": lambda task: decent(task, "one-peer-exp"),
    "Accelerate LocalSGD": accelerate,
    "torchft LocalSGD": lambda task: torchft(task, False),
    "torchft DiLoCo": lambda task: torchft(task, True),
}
OURS = {
    f"{sync}, {wire}": (sync, wire)
    for sync, wires in {
        "all-reduce": ("float32", "PowerSGD 2", "top-k"),
        "periodic average": ("float32", "int4", "top-k"),
        "DiLoCo": ("float32", "int4", "top-k", "top-k, SparseLoCo"),
        "DiLoCo overlapped": ("float32", "int4", "top-k"),
    }.items()
    for wire in wires
}


# -- the loop ----------------------------------------------------------------------------------------------------------
def sent_bytes() -> int:
    interface = os.environ["GLOO_SOCKET_IFNAME"]
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[8])
    raise RuntimeError(f"there is no interface {interface}")


def train(task: Task, trainee: Trainee, folder: Path) -> None:
    case = task.case
    dist.barrier()
    started, first, paused = time.perf_counter(), sent_bytes(), 0.0
    for n in range(1, case.most_steps + 1):
        trainee.step()
        due = n in (case.warm, case.most_steps) if case.timed else n % EVERY == 0
        if not due:
            continue
        now = time.perf_counter()
        row = {"seconds": now - started - paused, "sent": sent_bytes() - first}
        if not case.timed:
            row["x"] = nn.utils.parameters_to_vector(trainee.model.parameters()).detach()
        path = folder / f"{n}-{task.rank}"
        torch.save(row, path)
        path.rename(path.with_suffix(".pt"))
        paused += time.perf_counter() - now
    dist.barrier()


def work(case: Case, folder: Path, data: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.set_num_threads(1)
    inputs, targets = data
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with contextlib.ExitStack() as stack:
        task = Task(case, inputs, targets, rank, size, stack)
        if case.name in PEERS:
            dist.init_process_group("gloo")
            train(task, PEERS[case.name](task), folder)
            return
        import equipoise as eq

        sync, wire = OURS[case.name]
        eq.spawn(lambda comm: train(task, ours(task, SYNCS[sync], WIRES[wire]), folder), size)
