"""Everything that decides a run, as plain values: what `eq.train` and the command hand to each worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..batch.base import Batch
from ..batch.fixed import Fixed
from ..core.errors import UserError
from ..core.stop import Stop
from ..data.source import Source
from ..order.base import Order
from ..order.reshuffle import Reshuffle
from ..partition.base import Partition
from ..partition.iid import IID
from ..period.base import Period
from ..period.every import Every
from ..sync.all_reduce import AllReduce
from ..sync.base import Sync
from .until import Until

BUFFER_POLICIES = ("local", "average", "recompute")


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


def refuse_own_pace(period: Period, sync: Sync) -> None:
    """Refuse a period that lets workers go at their own pace with a sync that cannot."""
    if not period.lockstep and (sync.every_step or sync.foresees):
        raise UserError(
            f"{type(period).__name__} decides on a round when a step is over, and {type(sync).__name__} must know before: "
            "use period every, or a sync that acts at rounds only (periodic-average, easgd, lsgd, mgrawa, lgrawa)"
        )


def refuse_rare_rounds(period: Period, sync: Sync) -> None:
    """Refuse any period but every step with a sync that communicates at every step whatever the period."""
    if sync.every_step and period != Every():
        words = f"a period of {period.steps}" if isinstance(period, Every) else f"the period {type(period).__name__}"
        raise UserError(
            f"{type(sync).__name__} communicates at every step, so {words} means nothing: use periodic-average to "
            "communicate rarely"
        )


def warn_of_one_epoch(order: Order, length: Length) -> None:
    """What an order learns in an epoch is used in the next."""
    if order.watches and length.epochs is not None and length.epochs <= 1:
        logging.getLogger("equipoise").warning(
            "nothing to gain from order %s in one epoch: it learns from one epoch what it does in the next",
            type(order).__name__,
        )


@dataclass
class Job:
    model: Callable[[], nn.Module]
    loss: Callable[[Any, Any], torch.Tensor]
    train: Source
    length: Length
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    test: Source | None = None
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    partition: Partition = field(default_factory=IID)
    order: Order = field(default_factory=Reshuffle)
    batch: Batch = field(default_factory=Fixed)
    period: Period = field(default_factory=Every)
    sync: Sync = field(default_factory=AllReduce)
    buffers: str = "local"
    seed: int = 0
    drop_last: bool = False
    micro: int | None = None  # most examples per forward pass; larger batches are accumulated
    clip: float | None = None
    sam: float | None = None  # radius of sharpness-aware minimisation
    until: Until | None = None  # a target that ends the run before its length
    slow: list[float] | None = None  # how many times longer each worker takes for a gradient than it must
    autocast: torch.dtype | None = None
    nonfinite: str = "stop"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    folder: Path | None = None
    resume: Path | None = None  # a checkpoint folder
    checkpoint_every: int | None = None  # steps; None: at the end of each epoch
    keep: int = 2
    evaluate_every: float = 1.0  # epochs
    log_every: int = 10
    fingerprint: dict[str, Any] = field(default_factory=dict)  # the choices that a checkpoint must agree with
    blocks: list[np.ndarray] | None = None  # the partition, where it was computed before the workers started
    division_seconds: float = 0.0  # what the last one took
    described: bool = False  # is simulated time that of a described cluster?
    quiet: bool = True
    tensorboard: bool = False
    stop: Stop = field(default_factory=Stop)

    def __post_init__(self) -> None:
        warn_of_one_epoch(self.order, self.length)
        if self.buffers not in BUFFER_POLICIES:
            raise UserError(f"buffers = {self.buffers!r}: one of {', '.join(BUFFER_POLICIES)}")
        if self.seed < 0:
            raise UserError(f"seed = {self.seed}: must not be negative")
        if self.batch.watches and not self.period.lockstep:
            raise UserError(
                f"{type(self.batch).__name__} compares workers that take the same steps, and {type(self.period).__name__} lets each "
                "take its own: use a period such as every"
            )
        if self.nonfinite not in ("stop", "skip"):
            raise UserError(f"nonfinite = {self.nonfinite!r}: stop or skip")
        for name in ("micro", "clip", "sam", "checkpoint_every", "keep", "log_every", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"{name} = {value}: must be above zero")
        refuse_own_pace(self.period, self.sync)
        if self.order.coordinated and not self.period.lockstep:
            raise UserError(
                f"{type(self.order).__name__} needs all workers at every step, and {type(self.period).__name__} lets each "
                "go at its own pace: use a period such as every"
            )
        refuse_rare_rounds(self.period, self.sync)

    def slow_down(self, rank: int, size: int) -> float:
        """The factor in `slow` of one worker; for trying out unequal workers on equal machines."""
        if self.slow is None:
            return 1.0
        if len(self.slow) != size or min(self.slow) < 1.0:
            raise UserError(f"slow = {self.slow}: give one factor of at least 1 for each of the {size} workers")
        return self.slow[rank]
