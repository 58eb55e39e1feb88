"""Everything that decides a run, as plain values: what `eq.train` and the command hand to each worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..batch.base import Batch
from ..comm.base import Comm
from ..comm.membership import Elasticity
from ..comm.virtual_membership import Change
from ..config.defaults import chosen_sync, default
from ..config.fit import check_elastic, check_fit, check_settings, warn_of_one_epoch
from ..core.errors import UserError, did_you_mean
from ..core.stop import Stop
from ..data.source import Source
from ..data.training_loss import TrainingLoss
from ..observe.tracker import Tracker
from ..order.base import Order
from ..partition.base import Partition
from ..period.base import Period
from ..sync.base import Sync
from ..wire.base import Wire
from .until import Until


@dataclass
class Length:
    """When a run ends: whichever comes first."""

    epochs: float | None = None
    steps: int | None = None
    samples: int | None = None
    budget: float | None = None  # seconds; simulated ones where a cluster is described

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise UserError(f"{name} = {value}: must be above zero")
        if not any(value is not None for value in vars(self).values()):
            raise UserError("say when the run ends: epochs, steps, samples or a budget in seconds")


_DTYPES = {"none": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


def chosen_dtype(name: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype of `autocast` by its name."""
    if name is not None and name not in (*_DTYPES, *_DTYPES.values()):
        raise UserError(f"autocast = {str(name)!r}: {did_you_mean(str(name), list(_DTYPES))}")
    return _DTYPES[name] if isinstance(name, str) else name


@dataclass
class Job:
    model: Callable[[], nn.Module]
    loss: Callable[[Any, Any], torch.Tensor] | None  # None: the model returns its own
    train: Source
    length: Length
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    test: Source | None = None
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    perplexity: bool = False  # is the loss a mean over words?
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    partition: Partition = field(default_factory=lambda: default("partition"))
    order: Order = field(default_factory=lambda: default("order"))
    batch: Batch = field(default_factory=lambda: default("batch"))
    period: Period = field(default_factory=lambda: default("period"))
    sync: Sync = field(default_factory=lambda: chosen_sync(None, default("period")))
    wire: Wire = field(default_factory=lambda: default("wire"))
    buffers: str = "local"
    seed: int = 0
    drop_last: bool = False
    micro: int | None = None  # most examples per forward pass; larger batches are accumulated
    clip: float | None = None
    sam: float | None = None  # radius of sharpness-aware minimisation
    until: Until | None = None  # a target that ends the run before its length
    slow: list[float] | None = None  # a slow-down factor for each worker, to emulate stragglers
    autocast: torch.dtype | None = None
    nonfinite: str = "stop"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    folder: Path | None = None
    resume: Path | None = None  # a checkpoint folder
    resume_from: int | None = None  # the step that was asked for; None: the newest one
    without_missing: bool = False  # may a resume leave out workers whose files are on a host that is gone?
    checkpoint_every: int | None = None  # steps; None: at the end of each epoch
    keep: int = 2
    evaluate_every: float = 1.0  # epochs
    log_every: int = 10
    fingerprint: dict[str, Any] = field(default_factory=dict)  # the choices that a checkpoint must agree with
    blocks: list[np.ndarray] | None = None  # the partition, where it was computed before the workers started
    division_seconds: float = 0.0  # what the last one took
    described: bool = False  # is simulated time that of a described cluster?
    quiet: bool = True
    trackers: list[Tracker] = field(default_factory=list)
    stop: Stop = field(default_factory=Stop)
    leave: Stop = field(default_factory=Stop)  # of this worker alone, where the others may go on
    elastic: Elasticity | None = None  # may workers come and go?
    changes: list[Change] = field(default_factory=list)  # of virtual workers, as planned
    recipe: dict[str, Any] = field(default_factory=dict)  # for workers that join from the command line

    def __post_init__(self) -> None:
        self.training_loss = TrainingLoss(self.loss, self.metrics, perplexity=self.perplexity)
        warn_of_one_epoch(self.order, self.length.epochs)
        check_settings(buffers=self.buffers, nonfinite=self.nonfinite, seed=self.seed)
        for name in ("micro", "clip", "sam", "checkpoint_every", "keep", "log_every", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"{name} = {value}: must be above zero")
        if self.sam is not None and self.autocast == torch.float16:
            raise UserError("sam takes two gradients a step, and a loss scale serves one: pass autocast='bfloat16'")
        self.check_fit()

    def check_fit(self, workers: int | None = None) -> None:
        """Refuse choices that do not fit together; a topology too, where the number of workers is given."""
        check_fit(
            period=self.period,
            sync=self.sync,
            order=self.order,
            batch=self.batch,
            partition=self.partition,
            wire=self.wire,
            workers=workers,
            drop_last=self.drop_last,
        )
        if self.elastic is not None:
            check_elastic(
                self.elastic.least,
                self.elastic.most,
                period=self.period,
                sync=self.sync,
                wire=self.wire,
                batch=self.batch,
                partition=self.partition,
            )

    def slow_down(self, comm: Comm) -> float:
        """The factor in `slow` of one worker; for trying out unequal workers on equal machines."""
        if self.slow is None:
            return 1.0
        check_slow(self.slow, comm.size, elastic=comm.membership is not None)
        return self.slow[comm.worker] if comm.worker < len(self.slow) else 1.0


def check_slow(slow: list[float], workers: int, *, elastic: bool) -> None:
    if (len(slow) != workers and not elastic) or min(slow) < 1.0:
        raise UserError(f"slow = {slow}: give one factor of at least 1 for each of the {workers} workers")


# What may differ from worker to worker: hosts have folders and memory of their own.
_PATHS = ("data.dir", "data.path", "data.test_path", "data.target_path", "data.test_target_path")
_OF_A_HOST = ("out", "listen", "timeout", "tensorboard", "micro", *_PATHS)
_DECIDED = (
    "until",
    "nonfinite",
    "checkpoint_every",
    "keep",
    "evaluate_every",
    "log_every",
    "sam",
    "slow",
    "perplexity",
)


def settings_of(job: Job) -> dict[str, Any]:
    """The settings of a job that must be the same on all of its workers."""
    settings = {name: value for name, value in job.fingerprint.items() if name not in _OF_A_HOST}
    decided = {name: str(getattr(job, name)) for name in _DECIDED}
    lengths = {name: value for name, value in vars(job.length).items() if name not in settings}
    return {**settings, **lengths, **decided, "saves": job.folder is not None}
