"""The loop of one worker, from the data to the step and back.

dataset --partition--> my indices --order.epoch(k)--> sequence --batch.sizes--> batch
  batch -> loss.backward() -> signal -> order.observe, batch.observe
        -> sync.before_step(x, g) -> optimizer.step() -> [if period.due] sync.after_step(x)
        -> clock, ledger -> events;  every K steps: checkpoint

What happens around `optimizer.step()` is `loop.step.Step`, which a user's own loop has too.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..batch.base import Batch
from ..checkpoint.parts import agree
from ..checkpoint.places import find_places
from ..checkpoint.store import Store, choose, completing
from ..comm.base import Comm
from ..core.context import describe
from ..core.device import placed
from ..core.random import follow_generator, seed_worker
from ..observe.console import Console
from ..observe.observer import Observer, class_counts
from ..order.base import Order
from .agreement import Agreement
from .blocks import job_blocks
from .control import Control
from .drift import DriftCheck, Place, passport, refuse_other_recipe
from .evaluate import EvaluationTask, evaluate, health
from .example_gradients import example_gradients
from .fresh_gradients import FreshGradients
from .gradient import backward, loss_of
from .job import Job, settings_of
from .lr_schedule import LRSchedule, forecast
from .overflow import LossScale
from .positions import position_of, sizes_of
from .progress import Asynchronous, Lockstep, Progress
from .rebalance import rebalance
from .relearn import relearn
from .result import finish
from .snapshot import Done, Parts
from .state import load_worker, state_of
from .step import Step


class Worker:
    """One worker of a job, everything in place before the first step."""

    def __init__(self, job: Job, comm: Comm, *, before: Worker | None = None, begins: bool = True):
        """`before`: this worker in the last generation. `begins`: the run begins with this one."""
        self.job, self.comm = job, comm
        told = passport(settings_of(job))
        refuse_other_recipe(comm, told)
        places, missing = find_places(comm, job.folder), list[int]()
        if job.resume is not None and begins and job.folder is not None:
            if places.whole:
                job.resume = job.resume if job.resume.parent != job.folder else choose(job.folder, job.resume_from)
            else:
                options = {"without_missing": job.without_missing}
                job.resume, missing = agree(comm, job.folder, job.resume_from, places, **options)
        self.device = job.device if comm.virtual else placed(job.device, comm.worker)
        blocks = job_blocks(job, comm)
        comm.seed = job.seed
        if before is None:
            follow_generator(self.device)
            seed_worker(job.seed, comm.rank)
            self.model = job.model().to(self.device)
            self.optimizer = job.optimizer(self.model.parameters())
        else:
            self.model, self.optimizer = before.model, before.optimizer
        self.scheduler = None
        if job.scheduler is not None:
            self.scheduler = job.scheduler(self.optimizer) if before is None else before.scheduler
        self.indices = np.empty(0, dtype=np.int64)  # of the batch at hand
        self.stepper = Step(
            self.model,
            self.optimizer,
            comm,
            describe(comm, seed=job.seed, sizes=sizes_of(job.partition, job.batch, blocks)),
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
            forecast=forecast(job.length, len(job.train), self.scheduler),
            equal=begins,
        )
        step = self.stepper
        self.flat, self.buffers, self.clock, self.context = step.flat, step.buffers, step.clock, step.context
        self.sync, self.wire, self.period = step.sync, step.wire, step.period
        self.position = position_of(
            job.partition,
            self.context,
            blocks,
            job.order,
            job.batch,
            drop_last=job.drop_last,
            lockstep=step.lockstep,
            shared=comm.membership is not None or not places.whole,
        )
        step.follow(self.position.order, self.position.batch)
        self.scale: LossScale | None = None
        if job.autocast == torch.float16:
            self.scale = LossScale(self.optimizer, comm, self.device, lockstep=step.lockstep)
        self.judged_at = -1  # the step after which the scheduler last saw a loss
        self.progress: Progress = Lockstep(self) if step.lockstep else Asynchronous(self)
        self.slow = job.slow_down(comm)
        self.cost = self.slow * (2 if job.sam is not None else 1)  # of an example, in simulated time
        self.control = Control(self)
        told |= {"optimizer.lr": str(self.optimizer.defaults.get("lr"))}
        self.drift = DriftCheck(step, told, lambda: Place(self.position, self.position.taken_now()))
        self.agreement: Agreement | None = None  # where workers may come and go
        self.arrival: dict[str, Any] | None = None  # how this generation began, unless it is the first
        self.history: list[dict[str, Any]] = []  # of the membership
        self.departed = Done()
        if isinstance(self.scheduler, LRSchedule):
            self.scheduler.follow(self)
        console = None if job.quiet else Console(self.clock, self._total_steps)
        self.observer = Observer(
            comm,
            self.clock,
            job.folder,
            described=job.described,
            console=console,
            trackers=job.trackers,
            choices=job.fingerprint,
        )
        step.guard.folder = job.folder
        self.observer.keeps, self.places = places.leads(comm.rank), places
        self.store = None
        if job.folder is not None:
            self.store = Store(comm, job.folder, job.keep, job.resume, self._saved, places)
        if job.resume is not None and begins:
            load_worker(self, job.resume, missing)

    @property
    def task(self) -> EvaluationTask:
        """What models are evaluated on: the test data, or the training data where there is none."""
        job = self.job
        statistics = (job.train, self.position.block) if job.buffers == "recompute" else None
        return EvaluationTask(
            job.test if job.test is not None else job.train, job.training_loss, self.device, statistics
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
        with self.observer, completing(self.store):
            self.observer.started(
                resumed=self.job.resume is not None,
                examples=self.context.worker.examples,
                classes=class_counts(self.job.train.view().labels, self.position.own_block),
                arrival=self.arrival,
            )
            stopped = 0
            self.control.begin()
            while not (stopped or self.control.over()):
                if self.position.steps_left == 0:
                    self.clock.epoch += 1
                    rebalance(self)
                    relearn(self)
                    self.position.begin(self.clock.epoch)
                started = time.perf_counter()
                loss = self.step()
                self.clock.seconds += time.perf_counter() - started
                stopped = self.control.after(loss)
                if self.agreement is None and (self.clock.due or not self.stepper.talks):
                    self.position.confirm()
                saved = self.evaluate_and_save(stopped)
                if self.agreement is not None and not stopped:
                    self.agreement.after_step(self.parts(), always=saved)
                    if self.agreement.stopped:
                        stopped = self.agreement.stopped
                        self.evaluate_and_save(stopped)
            self.sync.finish()
            if not stopped:
                self.position.confirm()
            return finish(self, stopped)

    def step(self) -> float:
        """One turn of the loop; the loss of this worker's batch (NaN if it had none)."""
        step = self.stepper
        step.depart()
        self.indices, places = self.position.take()
        step.begin(len(self.indices), self.position.largest)
        began = time.perf_counter()
        loss, total, overflowed = backward(self, self.indices)
        step.computed(len(self.indices) * self.cost, time.perf_counter() - began)
        if overflowed:
            self.clock.batch = 0
        if step.before(loss, places, self.indices.tolist(), total):
            self.optimizer.step()
        step.after()
        if self.scale is not None:
            self.scale.update()
        if self.scheduler is not None and not self.follows_loss:
            self.scheduler.step()
        return loss

    @property
    def follows_loss(self) -> bool:
        """Does the learning rate follow from evaluations? Then one at the end counts too: the run may be resumed."""
        return isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)

    def _lower_rate(self, loss: float) -> None:
        if self.follows_loss and self.judged_at != self.clock.step:  # a run that is stopped comes here twice
            assert self.scheduler is not None
            self.judged_at = self.clock.step
            self.scheduler.step(loss)

    def parts(self) -> Parts:
        """What another generation of this run goes on with."""
        plain: dict[str, Any] = {"reached": self.control.reached, "history": self.history, "departed": self.departed}
        if isinstance(self.scheduler, LRSchedule):
            plain["first_batch"] = self.scheduler.first
        return Parts(self.stepper, self.position, self.others, plain)

    @property
    def others(self) -> dict[str, Any]:
        """What has a state besides model, optimizer and methods."""
        return {"scheduler": self.scheduler} | ({"scaler": self.scale} if self.scale is not None else {})

    def adopt(self, parts: Parts) -> None:
        """Take over the plain values of another generation, or of another worker."""
        plain = parts.plain
        self.control.reached, self.history, self.departed = plain["reached"], plain["history"], plain["departed"]
        if isinstance(self.scheduler, LRSchedule):
            self.scheduler.first = plain["first_batch"]
            self.scheduler.step()

    def evaluate_and_save(self, stopped: int) -> bool:
        """Evaluate and checkpoint where they are due; neither touches the training state. Was a checkpoint written?"""
        job, progress = self.job, self.progress
        if not progress.meeting:
            return False
        ended = self.control.over()
        every = job.checkpoint_every
        due = progress.step_passed(every) if every is not None else progress.epoch_passed(1)
        passed = progress.epoch_passed(job.evaluate_every)
        judged = passed and not (ended or stopped)
        if judged or due or ended or stopped:
            self.stepper.guard.meet()
        if judged or (passed and self.follows_loss):
            with self.comm.at_work():
                models = evaluate(self.stepper, self.task, ("mean", "centre"))
            if judged:
                ended = self.control.judge(models)
                if not ended:  # the end evaluates by itself
                    self.observer.evaluated(models, health(self.stepper))
            self._lower_rate(models["mean"]["loss"])
        if self.store is None or not (due or ended or stopped):
            return False
        self.save(wait=bool(ended or stopped))
        return True

    def save(self, *, wait: bool = True) -> None:
        """Begin a checkpoint, or write it; all workers do so together."""
        assert self.store is not None
        with self.comm.at_work():
            self.store.save(state_of(self), self.progress.steps, self.clock.epoch, self.job.fingerprint)
            if wait:
                self.store.wait()

    def _saved(self, path: Path) -> None:
        """Worker 0, from the thread that has written a checkpoint: the loop may be further."""
        self.observer.emit("checkpoint", path=path.name, step=int(path.name.removeprefix("step-")))

    def _total_steps(self) -> int | None:
        """Steps to the end as far as they are known now; None where only a budget ends the run."""
        length, position = self.job.length, self.position
        if length.steps is not None:
            return length.steps
        per_epoch = position.steps_of_epoch()
        if length.epochs is not None:
            return max(1, round(length.epochs * per_epoch))
        if length.samples is not None:
            return max(1, round(length.samples / len(self.job.train) * per_epoch))
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
