"""`eq.train`: one call from a model and data to a trained model, on any kind of workers."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..batch.base import Batch
from ..batch.fixed import Fixed
from ..config.recipe import DEFAULT_EPOCHS
from ..core.errors import CheckpointError, UserError
from ..data.source import Source
from ..launch.start import spawn
from ..order.base import Order
from ..order.reshuffle import Reshuffle
from ..partition.base import Partition
from ..partition.iid import IID
from ..period.base import Period
from ..period.every import Every
from ..simulate.cluster import Cluster, duration
from ..sync.all_reduce import AllReduce
from ..sync.base import Sync
from ..sync.periodic_average import PeriodicAverage
from .job import Job, Length
from .until import Until
from .worker import Worker


@dataclass
class Run:
    """What a run gives: `result` (as in result.json), the mean model, and the folder if one was asked for."""

    result: dict[str, Any]
    model: nn.Module
    folder: Path | None = None
    stopped: int = 0  # the exit code asked for, where a signal ended the run

    @property
    def events(self) -> list[dict[str, Any]]:
        from ..observe.events import read_events

        return read_events(self.folder) if self.folder is not None else []


def train(
    model: nn.Module | Callable[[], nn.Module],
    loss: Callable[[Any, Any], torch.Tensor],
    data: Any,
    *,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    workers: int = 1,
    epochs: float | None = None,
    steps: int | None = None,
    samples: int | None = None,
    budget: float | str | None = None,
    until: str | None = None,
    partition: Partition | None = None,
    order: Order | None = None,
    batch: Batch | int | None = None,
    period: Period | int | None = None,
    sync: Sync | None = None,
    test: Any = None,
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    virtual: bool = True,
    cluster: Cluster | str | Path | None = None,
    out: str | Path | None = None,
    resume: bool | int = False,
    seed: int = 0,
    deterministic: bool = False,
    timeout: float = 300.0,
    progress: bool = False,
    **options: Any,
) -> Run:
    """Train `model` on `data` with many workers; every axis has a default.

    model: a module (left untouched; workers train copies) or a function that makes one.
    loss: `loss(model(inputs), targets)`, a mean over the batch.
    data: `(inputs, targets)` tensors or a map-style Dataset of such pairs; `test` likewise, for evaluation.
    optimizer: a function from parameters to any `torch.optim` optimizer; SGD with lr 0.1 if left out.
    epochs, steps, samples, budget: when to stop, whichever comes first; one epoch if none is given.
    until: a target such as "accuracy=0.85" or "loss=0.3" that ends the run at the first evaluation which reaches it; evaluations
        take place every `evaluate_every` epochs (0.25: four times in each). `result["reached"]` says where and at what cost.
    virtual: workers inside this process, one at a time. False forks local processes. Under torchrun its processes are used.
    out: a folder for events, checkpoints and the result; `resume=True` goes on from its newest checkpoint.
    options: `buffers`, `micro`, `clip`, `autocast`, `nonfinite`, `drop_last`, `checkpoint_every`, `keep`, `evaluate_every`,
        `log_every`, as in `equipoise train --help`.

    Returns a `Run` whose `model` carries the mean of the workers' parameters and buffers.
    """
    from ..core.torchrun import under_torchrun

    if isinstance(model, nn.Module):
        original = model

        def make() -> nn.Module:
            return copy.deepcopy(original)
    else:
        make = model
    if isinstance(cluster, (str, Path)):
        cluster = Cluster.load(cluster)
    if epochs is steps is samples is budget is None:
        epochs = 1 if until is None else DEFAULT_EPOCHS
    period = Every(period) if isinstance(period, int) else period
    if sync is None:
        # A period that is given asks for rare rounds, which gradients cannot have.
        sync = PeriodicAverage() if period is not None and period != Every(1) else AllReduce()
    if under_torchrun():
        virtual, workers = False, int(os.environ["WORLD_SIZE"])
    job = Job(
        model=make,
        loss=loss,
        train=Source(data),
        test=Source(test) if test is not None else None,
        length=Length(epochs, steps, samples, duration(budget, "budget") if budget is not None else None),
        optimizer=optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
        scheduler=scheduler,
        partition=partition or IID(),
        order=order or Reshuffle(),
        batch=batch if isinstance(batch, Batch) else Fixed(batch if batch is not None else 32),
        period=period or Every(),
        sync=sync,
        until=Until.parse(until) if until is not None else None,
        seed=seed,
        folder=Path(out) if out is not None else None,
        quiet=not progress,
        described=cluster is not None,
        **options,
    )
    if not job.fingerprint:
        choices = ("partition", "order", "batch", "period", "sync", "buffers", "drop_last", "clip", "autocast", "seed")
        job.fingerprint = {name: repr(getattr(job, name)) for name in choices} | {"examples": len(job.train)}
    if job.folder is not None:
        prepare(job, resume)
    return run_job(job, workers, virtual=virtual, cluster=cluster, deterministic=deterministic, timeout=timeout)


def prepare(job: Job, resume: bool | int) -> None:
    """Make the run's folder, or find the checkpoint in it."""
    from ..checkpoint.match import refuse_mismatch
    from ..checkpoint.store import available, choose, read_manifest
    from ..core.torchrun import under_torchrun

    assert job.folder is not None
    if resume is not False:
        job.resume = choose(job.folder, None if resume is True else resume)
        refuse_mismatch(read_manifest(job.resume)["fingerprint"], job.fingerprint)
        return
    # Under torchrun every process comes here: the first one alone may claim the folder.
    first = not under_torchrun() or os.environ["RANK"] == "0"
    if first and ((job.folder / "events.jsonl").exists() or available(job.folder)):
        raise CheckpointError(f"{job.folder} holds a run already: resume it, or choose another folder")
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        if first:
            (job.folder / "events.jsonl").touch()
    except OSError as error:
        raise UserError(f"cannot write to {job.folder}: {error.strerror}; choose another folder") from None


def run_job(
    job: Job, workers: int, *, virtual: bool, cluster: Cluster | None, deterministic: bool, timeout: float
) -> Run:
    """Start the workers of a prepared job and collect what they give."""
    from ..core.progress_bar import shown
    from ..core.torchrun import under_torchrun
    from .blocks import is_measured

    if job.blocks is None and not under_torchrun() and not is_measured(job.partition):
        with shown(not job.quiet):  # once here, not in every process
            job.blocks = job.partition.blocks(job.train.view(), workers, job.seed)

    def work(comm: Any) -> tuple[dict[str, Any], Any]:
        result, state = Worker(job, comm).run()
        return result, state if comm.rank == 0 or under_torchrun() else None

    rows = spawn(
        work, workers, virtual=virtual, cluster=cluster, timeout=timeout, deterministic=deterministic, stop=job.stop
    )
    result, state = rows[0]
    model = job.model()
    model.load_state_dict(state)
    return Run(result, model, job.folder, stopped=int(result.pop("stopped")))
