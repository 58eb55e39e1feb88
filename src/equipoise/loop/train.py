"""`eq.train`: one call from a model and data to a trained model, on any kind of workers."""

from __future__ import annotations

import copy
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..batch.base import Batch
from ..checkpoint.match import refuse_mismatch
from ..checkpoint.store import available, choose, read_manifest
from ..checkpoint.weights import save_weights
from ..comm.membership import DEADLINE, Elasticity
from ..config import defaults
from ..config.fingerprint import flattened, tables_of
from ..core.device import chosen_device, say_once
from ..core.errors import UserError
from ..core.progress_bar import shown
from ..core.torchrun import rank, under_torchrun, world_size
from ..data.source import Source
from ..launch.start import spawn
from ..launch.take_part import fingerprint_of_the_run, joins_a_run
from ..observe.tracker import Tracker, chosen_trackers
from ..order.base import Order
from ..partition.base import Partition
from ..period.base import Period
from ..simulate.cluster import Cluster
from ..simulate.units import duration
from ..sync.base import Sync
from ..wire.base import Wire
from .blocks import speeds_are_measured, waits_for_model
from .generations import train_worker
from .job import Job, Length, chosen_dtype
from .pace import pace
from .run_folder import prepare_folder
from .until import Until


@dataclass(repr=False)
class Run:
    """What a run gives: `result` (as in result.json), the mean model, and the folder if one was asked for.

    The model is in the mode, train or eval, of the one that was passed: call `run.model.eval()` before you use it.
    """

    result: dict[str, Any]
    model: nn.Module
    folder: Path | None = None
    stopped: int = 0  # the exit code asked for, where a signal ended the run

    def __repr__(self) -> str:
        metrics = {name: round(value, 4) for name, value in self.result.get("models", {}).get("mean", {}).items()}
        return f"Run({self.result.get('steps')} steps, mean model {metrics}, folder={self.folder})"

    def save(self, path: str | Path) -> None:
        """Write the weights of the mean model to a file: safetensors by that suffix, else what torch.load reads."""
        save_weights(self.model.state_dict(), Path(path))

    @property
    def events(self) -> list[dict[str, Any]]:
        from ..observe.events import read_events

        return read_events(self.folder) if self.folder is not None else []


def train(
    model: nn.Module | Callable[[], nn.Module],
    loss: Callable[[Any, Any], torch.Tensor] | None,
    data: Any,
    *,
    metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    workers: int = 1,
    epochs: float | None = None,
    steps: int | None = None,
    samples: int | None = None,
    budget: float | str | None = None,
    until: str | None = None,
    partition: Partition | None = None,
    order: Order | None = None,
    batch: Batch | int | list[int] | None = None,
    period: Period | int | None = None,
    sync: Sync | None = None,
    wire: Wire | None = None,
    test: Any = None,
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    virtual: bool = True,
    cluster: Cluster | str | Path | None = None,
    device: torch.device | str = "cpu",
    out: str | Path | None = None,
    resume: bool | int = False,
    seed: int = 0,
    deterministic: bool = False,
    timeout: float = 300.0,
    elastic: str | int | Elasticity | None = None,
    deadline: float = DEADLINE,
    progress: bool = False,
    buffers: str = "local",
    micro: int | None = None,
    clip: float | None = None,
    sam: float | None = None,
    autocast: torch.dtype | str | None = None,
    nonfinite: str = "stop",
    drop_last: bool = False,
    slow: list[float] | None = None,
    checkpoint_every: int | None = None,
    keep: int = 2,
    evaluate_every: float = 1.0,
    log_every: int = 10,
    tensorboard: bool = False,
    track: str | Tracker | Sequence[str | Tracker] | None = None,
) -> Run:
    """Train `model` on `data` with many workers; every axis has a default.

    model: a module (left untouched; workers train copies) or a function that makes one.
    loss: `loss(model(inputs), targets)`, a mean over the batch. None where the model returns its own loss: a scalar,
        `output.loss` or `output["loss"]`.
    data: `(inputs, targets)` tensors or numpy arrays, a dict of them, or a map-style Dataset; `test` likewise, for
        evaluation. Examples may be tuples, dicts or nested. A dict becomes keyword arguments of the model; its "labels"
        are the targets.
    collate: makes a batch of a list of examples; torch's default_collate if left out.
    num_workers: loader processes. Only 0: each worker reads its own examples. `eq.attach` takes loaders with processes.
    metrics: `metric(outputs, targets)`, a mean over the batch, by name. They are evaluated beside loss and accuracy.
    optimizer: a function from parameters to any `torch.optim` optimizer; SGD with lr 0.1 if left out.
    scheduler: a function from the optimizer to a learning-rate scheduler, stepped after every step; ReduceLROnPlateau
        after every evaluation, with the loss of the mean model.
    epochs, steps, samples, budget: when to stop, whichever comes first; one epoch if none is given.
    until: a target such as "accuracy=0.85" or "loss=0.3" that ends the run at the first evaluation which reaches it;
        evaluations take place every `evaluate_every` epochs (0.25: four times in each). `result["reached"]` says where
        and at what cost.
    virtual: workers inside this process, one at a time. False forks local processes. Under torchrun its processes are
        used.
    device: where the models of the workers live: "cpu", "cuda", "mps", "xpu", "auto" for the first of these that is
        there, or one with its number ("cuda:1"). Processes of one host take its devices in turn.
    elastic: "MIN:MAX" lets workers be lost and join while the run goes on, as long as there are MIN (MIN alone: at most
        `workers`). deadline: seconds after which a worker that does not answer is left out.
    out: a folder for events, checkpoints and the result; `resume=True` goes on from its newest checkpoint.
    deterministic: sum in rank order, so that processes give the bits of virtual workers.
    buffers: BatchNorm statistics at evaluation and rounds: "local", "average" or "recompute".
    micro: most examples per forward pass; larger batches are accumulated.
    autocast: compute in "bfloat16", or in "float16" with a loss scale; parameters and messages stay as they are.
    clip: the norm to which the combined gradient is clipped. sam: radius of sharpness-aware minimisation.
    nonfinite: what happens to a NaN or infinity in one worker: "stop", and name the last good checkpoint; "skip" its
        step; or "leave-out", so that it goes on from the others' model after the round.
    slow: a slow-down factor for each worker, to emulate stragglers on equal machines.
    checkpoint_every: steps between checkpoints (every epoch if left out), of which the last `keep` stay.
    track: show the numbers elsewhere too: "tensorboard", "wandb", "mlflow", several of them, or a `Tracker`.

    Returns a `Run` whose `model` carries the mean of the workers' parameters and buffers.
    """
    make = functools.partial(copy.deepcopy, model) if isinstance(model, nn.Module) else model
    refuse_objects(model=make, optimizer=optimizer, scheduler=scheduler)
    workers, seed = _whole("workers", workers), _whole("seed", seed)
    if num_workers:
        raise UserError(
            f"num_workers = {num_workers}: eq.train has no loader processes; use eq.attach and eq.Sampler with "
            f"DataLoader(batch_sampler=sampler, num_workers={num_workers})"
        )
    if isinstance(cluster, (str, Path)):
        cluster = Cluster.load(cluster)
    if epochs is steps is samples is budget is None:
        epochs = defaults.EPOCHS if until is None else defaults.EPOCHS_TO_TARGET
    given, period = period is not None, defaults.chosen_period(period)
    if under_torchrun():
        if workers not in (1, world_size()):
            say_once(f"the workers are the {world_size()} processes of torchrun, not workers={workers}", rank())
        virtual, workers = False, world_size()
    job = Job(
        model=make,
        loss=loss,
        metrics=metrics or {},
        train=Source(data, collate),
        test=Source(test, collate) if test is not None else None,
        length=Length(epochs, steps, samples, duration(budget, "budget") if budget is not None else None),
        optimizer=optimizer or _default_optimizer,
        scheduler=scheduler,
        partition=defaults.chosen_partition(partition),
        order=defaults.chosen_order(order),
        batch=defaults.chosen_batch(batch),
        period=period,
        sync=defaults.chosen_sync(sync, period),
        wire=defaults.chosen_wire(wire),
        until=Until.parse(until) if until is not None else None,
        device=chosen_device(device),
        seed=seed,
        folder=Path(out) if out is not None else None,
        quiet=not progress,
        described=cluster is not None,
        buffers=buffers,
        micro=micro,
        clip=clip,
        sam=sam,
        autocast=chosen_dtype(autocast),
        nonfinite=nonfinite,
        drop_last=drop_last,
        slow=slow,
        checkpoint_every=checkpoint_every,
        keep=keep,
        evaluate_every=evaluate_every,
        log_every=log_every,
        trackers=chosen_trackers(track) + chosen_trackers("tensorboard" if tensorboard else None),
        elastic=chosen_elasticity(elastic, workers, deadline),
    )
    if chosen := pace(job, cluster, workers) if cluster is not None and not given else None:
        job.sync, job.period = replace(job.sync, **chosen[0]), defaults.chosen_period(chosen[1])
    job.check_fit(workers)
    job.fingerprint = _fingerprint(job)
    if job.folder is not None:
        prepare(job, resume)
    return run_job(job, workers, virtual=virtual, cluster=cluster, deterministic=deterministic, timeout=timeout)


_FUNCTIONS = {
    "model": "a torch.nn.Module or a function that makes one",
    "optimizer": "a function: every worker makes its own, such as optimizer=lambda p: torch.optim.SGD(p, lr=0.1)",
    "scheduler": "a function: every worker makes its own, such as scheduler=lambda o: StepLR(o, 100)",
}


def refuse_objects(**given: Any) -> None:
    """Workers make models, optimizers and schedulers of their own."""
    for name, value in given.items():
        if value is not None and not callable(value):
            raise UserError(f"{name} of type {type(value).__name__}: pass {_FUNCTIONS[name]}")


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, Integral):
        raise UserError(f"{name} = {value!r}: pass a whole number")
    return int(value)


def chosen_elasticity(elastic: str | int | Elasticity | None, workers: int, deadline: float) -> Elasticity | None:
    if elastic is None or isinstance(elastic, Elasticity):
        return elastic
    return Elasticity.parse(elastic, workers, deadline)


def _default_optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=defaults.LEARNING_RATE["sgd"])


def _fingerprint(job: Job) -> dict[str, Any]:
    """What a checkpoint must agree with; a recipe has more to say than arguments do."""
    methods = {axis: getattr(job, axis) for axis in ("partition", "order", "batch", "period", "sync", "wire")}
    settings = {name: getattr(job, name) for name in ("buffers", "drop_last", "clip", "seed")}
    return flattened(tables_of(methods) | settings | {"autocast": str(job.autocast), "examples": len(job.train)})


def prepare(job: Job, resume: bool | int) -> None:
    """Make the run's folder, or find the checkpoint in it."""
    assert job.folder is not None
    if resume is False:
        # Under torchrun every process comes here: the first one alone may claim the folder.
        prepare_folder(job.folder, first=rank() == 0 and not joins_a_run())
        return
    job.resume_from = None if resume is True else int(resume)
    if world_size() > 1 and not available(job.folder):
        job.resume = job.folder / "checkpoints"  # another host may have one
        return
    job.resume = choose(job.folder, job.resume_from)
    refuse_mismatch(read_manifest(job.resume)["fingerprint"], job.fingerprint)


def run_job(
    job: Job, workers: int, *, virtual: bool, cluster: Cluster | None, deterministic: bool, timeout: float
) -> Run:
    """Start the workers of a prepared job and collect what they give."""
    joins = job.elastic is not None and joins_a_run()
    if joins:
        refuse_mismatch(fingerprint_of_the_run(timeout), job.fingerprint)
    changed = job.resume is not None and waits_for_model(job.partition)
    if job.blocks is None and not (joins or under_torchrun() or speeds_are_measured(job.partition) or changed):
        with shown(not job.quiet):  # once here, not in every process
            job.blocks = job.partition.blocks(job.train.view(), workers, job.seed)

    if not virtual and (workers > 1 or job.elastic is not None) and not under_torchrun():
        # The first optimizer of a process imports much of torch: once here, not in every forked worker.
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)

    rows = spawn(
        functools.partial(_work, job),
        workers,
        virtual=virtual,
        cluster=cluster,
        timeout=timeout,
        deterministic=deterministic,
        stop=job.stop,
        leave=job.leave,
        elastic=job.elastic,
        changes=job.changes,
        announce=lambda address, store: announce(job, address, store),
        device=job.device,
    )
    result, state = rows[0]
    model = job.model()
    model.load_state_dict(state)
    return Run(result, model, job.folder, stopped=int(result.pop("stopped")))


def _work(job: Job, comm: Any) -> tuple[dict[str, Any], Any]:
    result, state = train_worker(job, comm)
    return result, state if comm.rank == 0 or job.elastic is not None or under_torchrun() else None


def announce(job: Job, address: str, store: Any) -> None:
    """Say where workers can join, and what they need to know."""
    store.set("fingerprint", json.dumps(job.fingerprint))
    store.set("recipe", json.dumps(job.recipe))
    if job.folder is not None:
        (job.folder / "address").write_text(f"{address}\n")
    if not job.quiet:
        where = job.folder if job.folder is not None else address
        print(f"equipoise: to add a worker: equipoise join {where}", file=sys.stderr, flush=True)
