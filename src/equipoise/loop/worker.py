"""The loop of one worker, from the data to the step and back.

dataset --partition--> my indices --order.epoch(k)--> sequence --batch.sizes--> batch
  batch -> loss.backward() -> signal -> order.observe, batch.observe
        -> sync.before_step(x, g) -> optimizer.step() -> [if period.due] sync.after_step(x)
        -> clock, ledger -> events;  every K steps: checkpoint
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from ..checkpoint.store import load_worker, save
from ..comm.base import Comm
from ..core.context import Context
from ..core.errors import NonFinite, UserError
from ..core.random import seed_worker
from ..core.vector import Buffers, Flat
from ..observe.observer import Observer
from ..sync.none import NoSync
from .blocks import job_blocks
from .control import Control, make_equal
from .evaluate import evaluate, finish, health
from .example_gradients import example_gradients
from .fresh_gradients import Probe
from .gradient import backward, healthy
from .job import Job
from .lr_schedule import Schedule
from .progress import Lockstep, OwnPace
from .rebalance import renew
from .sampler import Position


class Worker:
    """One worker of a job, everything in place before the first step."""

    def __init__(self, job: Job, comm: Comm):
        self.job, self.comm = job, comm
        blocks = job_blocks(job, comm)
        comm.seed = job.seed
        seed_worker(job.seed, comm.rank)
        self.model = job.model().to(job.device)
        self.flat, self.buffers = Flat(self.model), Buffers(self.model)
        make_equal(comm, self.model, self.flat)
        mine = len(blocks[comm.rank])
        share, probe = mine / len(job.train), Probe(self)
        self.context = Context(comm, seed=job.seed, examples=mine, share=share, flat=self.flat, probe=probe)
        self.context.whole, self.context.clip = len(job.train), job.clip
        self.context.emit = lambda event, **fields: self.observer.emit(event, **fields)
        self.context.example_gradients = lambda count: example_gradients(self, count)
        self.context.shares = [len(block) / len(job.train) for block in blocks]
        self.clock = self.context.clock
        self.optimizer = self.context.optimizer = job.optimizer(self.model.parameters())
        self.scheduler = job.scheduler(self.optimizer) if job.scheduler is not None else None
        self.order = job.order.bind(self.context)
        self.batch = job.batch.bind(self.context)
        self.period = job.period.bind(self.context)
        # With one worker there is nobody to talk to: every method is the plain optimizer.
        self.sync = (job.sync if comm.size > 1 else NoSync()).bind(self.context)
        self.talks = not isinstance(self.sync, NoSync)
        self.needs_flat = self.sync.uses_gradient or job.nonfinite == "skip"
        self.pace = Lockstep(self) if self.period.lockstep or not self.talks else OwnPace(self)
        if self.order.coordinated and not self.pace.lockstep:
            raise UserError(
                f"{type(self.order).__name__} needs all workers in step, but this period lets each take its own: use id-grab"
            )
        self.position = Position(self.context, blocks, self.order, self.batch, job.drop_last, self.pace.lockstep)
        self.slow = job.slow_down(comm.rank, comm.size)
        self.cost = self.slow * (2 if job.sam is not None else 1)  # of an example, in simulated time
        self.control = Control(self)
        if isinstance(self.scheduler, Schedule):
            self.scheduler.follow(self)
        self.observer = Observer(self)
        self.saved: set[int] = set()  # steps of the checkpoints that this run has written
        if job.resume is not None:
            load_worker(self, job.resume)

    def run(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Train to the end; the result and the mean model."""
        self.model.train()
        with self.observer:
            stopped = 0
            self.control.begin()
            while not (stopped or self.control.over()):
                if self.position.steps_left == 0:
                    self.clock.epoch += 1
                    renew(self)
                    self.position.begin(self.clock.epoch)
                started = time.perf_counter()
                loss = self.step()
                self.clock.seconds += time.perf_counter() - started
                stopped = self.control.after(loss)
                self.keep_up(stopped)
            self.sync.finish()
            return finish(self, stopped)

    def step(self) -> float:
        """One turn of the loop; the loss of this worker's batch (NaN if it had none)."""
        job, clock, flat, sync = self.job, self.clock, self.flat, self.sync
        self.indices, places = self.position.take()
        indices = self.indices
        clock.batch = len(indices)
        self.context.reference = self.position.largest
        clock.lr = self.optimizer.param_groups[0]["lr"]
        due = self.pace.lockstep and (self.talks or self.batch.watches) and self.period.due(clock)
        clock.due = self.talks and due
        self.comm.step = clock.step + 1
        kept = [b.clone() for b in self.model.buffers()] if job.nonfinite == "skip" else []
        began = time.perf_counter()
        self.context.loss = loss = backward(self, indices)
        spent = time.perf_counter() - began
        simulated = self.comm.computed(len(indices) * self.cost)
        clock.busy += simulated if self.comm.virtual else spent
        if not job.described:
            self.comm.ledger.compute += spent
        x, g = flat.gather(), flat.gradient() if self.needs_flat else None
        if not healthy(self, loss, g, indices):
            clock.batch = 0
            for buffer, before in zip(self.model.buffers(), kept, strict=False):
                buffer.copy_(before)  # BatchNorm has seen what made the loss NaN
        if self.batch.watches:
            self.batch.observe(clock.due or (due and self.comm.size == 1))
        if self.order.watches and places is not None:
            seen = self.order.watcher.view() if clock.batch else None
            self.order.observe(places if clock.batch else places[:0], seen)
        clock.hold = False
        sync.before_step(x, g)
        if g is not None:
            flat.scatter_gradient()
        flat.scatter()
        if not clock.hold and (clock.batch or sync.idle_steps):
            if job.clip is not None:
                torch.nn.utils.clip_grad_norm_(flat.parameters.values(), job.clip)
            self.optimizer.step()
        if not self.pace.lockstep:
            clock.due = self.period.due(clock)
        if clock.due or sync.lands:
            sync.after_step(flat.gather())
            flat.scatter()
            if clock.due and job.buffers == "average" and len(self.buffers):
                self.buffers.scatter(self.comm.mean(self.buffers.gather()))
        if self.batch.watches:
            self.batch.settle()
        if self.scheduler is not None:
            self.scheduler.step()
        clock.step += 1
        clock.samples += len(indices)
        return loss

    def keep_up(self, stopped: int) -> None:
        """Evaluate and checkpoint where they are due; neither touches the training state."""
        job, clock, pace = self.job, self.clock, self.pace
        if not pace.meeting:
            return
        ended = self.control.over()
        if pace.epoch_passed(job.evaluate_every) and not (ended or stopped):
            models = evaluate(self, ("mean", "centre"))
            ended = self.control.judge(models)
            if not ended:  # the end evaluates by itself
                self.observer.evaluated(models, health(self))
        due = pace.step_passed(job.checkpoint_every) if job.checkpoint_every is not None else pace.epoch_passed(1)
        if not (due or ended or stopped):
            return
        if job.nonfinite == "stop" and not math.isfinite(self.flat.gather().sum(dtype=torch.float64).item()):
            where = f"worker {self.comm.rank}, step {clock.step}"
            fix = "lower the learning rate, clip, or pass --nonfinite skip"
            raise NonFinite(f"{where}: the parameters are not finite; {fix}", self.comm.rank, clock.step)
        if job.folder is not None:
            save(self)
