"""The loop of one worker, from the data to the step and back.

dataset --partition--> my indices --order.epoch(k)--> sequence --batch.sizes--> batch
  batch -> loss.backward() -> signal -> order.observe, batch.observe
        -> sync.before_step(x, g) -> optimizer.step() -> [if period.due] sync.after_step(x)
        -> clock, ledger -> events;  every K steps: checkpoint

What happens around `optimizer.step()` is `loop.step.Step`, which a user's own loop has too.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from ..batch.base import Batch
from ..checkpoint.store import Store
from ..comm.base import Comm
from ..core.context import describe
from ..core.random import seed_worker
from ..observe.console import Console
from ..observe.observer import Observer, class_counts
from ..order.base import Order
from .blocks import job_blocks
from .control import Control
from .evaluate import EvaluationTask, evaluate, health
from .example_gradients import example_gradients
from .fresh_gradients import FreshGradients
from .gradient import backward, loss_of
from .job import Job
from .lr_schedule import LRSchedule
from .position import Position
from .progress import Asynchronous, Lockstep, Progress
from .rebalance import rebalance
from .result import finish
from .state import load_worker, state_of
from .step import Step


class Worker:
    """One worker of a job, everything in place before the first step."""

    def __init__(self, job: Job, comm: Comm):
        self.job, self.comm = job, comm
        blocks = job_blocks(job, comm)
        comm.seed = job.seed
        seed_worker(job.seed, comm.rank)
        self.model = job.model().to(job.device)
        self.optimizer = job.optimizer(self.model.parameters())
        self.indices = np.empty(0, dtype=np.int64)  # of the batch at hand
        self.stepper = Step(
            self.model,
            self.optimizer,
            comm,
            describe(comm, seed=job.seed, sizes=[len(block) for block in blocks]),
            sync=job.sync,
            period=job.period,
            wire=job.wire,
            clip=job.clip,
            buffers=job.buffers,
            nonfinite=job.nonfinite,
            emit=self._emit,
            fresh_gradients=FreshGradients(
                self.model, self._loss_of, comm, total_examples=len(job.train), seed=job.seed
            ),
            example_gradients=self._example_gradients,
        )
        step = self.stepper
        self.flat, self.buffers, self.clock, self.context = step.flat, step.buffers, step.clock, step.context
        self.sync, self.wire, self.period = step.sync, step.wire, step.period
        order, batch = job.order.bind(self.context), job.batch.bind(self.context)
        step.follow(order, batch)
        self.scheduler = job.scheduler(self.optimizer) if job.scheduler is not None else None
        self.progress: Progress = Lockstep(self) if step.lockstep else Asynchronous(self)
        self.position = Position(self.context, blocks, order, batch, job.drop_last, step.lockstep)
        self.slow = job.slow_down(comm.rank, comm.size)
        self.cost = self.slow * (2 if job.sam is not None else 1)  # of an example, in simulated time
        self.control = Control(self)
        if isinstance(self.scheduler, LRSchedule):
            self.scheduler.follow(self)
        console = None if job.quiet else Console(self.clock, self._total_steps)
        self.observer = Observer(
            comm, self.clock, job.folder, described=job.described, console=console, tensorboard=job.tensorboard
        )
        self.store = Store(comm, job.folder, job.keep, job.resume) if job.folder is not None else None
        if job.resume is not None:
            load_worker(self, job.resume)

    @property
    def task(self) -> EvaluationTask:
        """What models are evaluated on: the test data, or the training data where there is none."""
        job = self.job
        statistics = (job.train, self.position.block) if job.buffers == "recompute" else None
        return EvaluationTask(
            job.test if job.test is not None else job.train, job.training_loss, job.device, statistics
        )

    @property
    def order(self) -> Order:
        assert self.stepper.order is not None
        return self.stepper.order

    @property
    def batch(self) -> Batch:
        assert self.stepper.batch is not None
        return self.stepper.batch

    def run(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Train to the end; the result and the mean model."""
        self.model.train()
        with self.observer:
            self.observer.started(
                resumed=self.job.resume is not None,
                examples=self.context.worker.examples,
                classes=class_counts(self.job.train.view().labels, self.position.block),
            )
            stopped = 0
            self.control.begin()
            while not (stopped or self.control.over()):
                if self.position.steps_left == 0:
                    self.clock.epoch += 1
                    rebalance(self)
                    self.position.begin(self.clock.epoch)
                started = time.perf_counter()
                loss = self.step()
                self.clock.seconds += time.perf_counter() - started
                stopped = self.control.after(loss)
                self.evaluate_and_save(stopped)
            self.sync.finish()
            return finish(self, stopped)

    def step(self) -> float:
        """One turn of the loop; the loss of this worker's batch (NaN if it had none)."""
        step = self.stepper
        self.indices, places = self.position.take()
        step.begin(len(self.indices), self.position.largest)
        began = time.perf_counter()
        loss = backward(self, self.indices)
        step.computed(len(self.indices) * self.cost, time.perf_counter() - began)
        if step.before(loss, places, self.indices.tolist()):
            self.optimizer.step()
        step.after()
        if self.scheduler is not None:
            self.scheduler.step()
        return loss

    def evaluate_and_save(self, stopped: int) -> None:
        """Evaluate and checkpoint where they are due; neither touches the training state."""
        job, progress = self.job, self.progress
        if not progress.meeting:
            return
        ended = self.control.over()
        if progress.epoch_passed(job.evaluate_every) and not (ended or stopped):
            models = evaluate(self.stepper, self.task, ("mean", "centre"))
            ended = self.control.judge(models)
            if not ended:  # the end evaluates by itself
                self.observer.evaluated(models, health(self.stepper))
        every = job.checkpoint_every
        due = progress.step_passed(every) if every is not None else progress.epoch_passed(1)
        if not (due or ended or stopped):
            return
        self.stepper.refuse_nonfinite_parameters()
        if self.store is not None:
            path = self.store.save(state_of(self), progress.steps, self.clock.epoch, job.fingerprint)
            self.observer.emit("checkpoint", path=path.name)

    def _total_steps(self) -> int | None:
        """Steps to the end as far as they are known now; None where only a budget ends the run."""
        length, position = self.job.length, self.position
        if length.steps is not None:
            return length.steps
        per_epoch = position.steps_of_epoch()
        if length.epochs is not None:
            return max(1, round(length.epochs * per_epoch))
        if length.samples is not None:
            return max(1, round(length.samples / sum(map(len, position.blocks)) * per_epoch))
        return None

    def _loss_of(self, indices: np.ndarray) -> torch.Tensor:
        return loss_of(self, indices)

    def _example_gradients(self, count: int) -> list[torch.Tensor]:
        """Of the first `count` examples of this step's batch (0: all)."""
        indices = self.indices[:count] if count else self.indices
        rows = example_gradients(self.model, self.flat, self._loss_of, indices)
        self.comm.computed(len(indices) * self.cost)
        return rows

    def _emit(self, event: str, **fields: Any) -> None:
        self.observer.emit(event, **fields)
