"""`eq.attach`: every sync and period on a user's own loop, with the step that `eq.train` has."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..checkpoint.store import Store
from ..checkpoint.weights import save_weights
from ..comm.base import Comm, barrier
from ..comm.current import current_comm
from ..comm.membership import DEADLINE, Elasticity
from ..config.defaults import chosen_period, chosen_sync, chosen_wire
from ..config.fit import check_fit
from ..core.clock import Clock
from ..core.errors import PeerLost, UserError
from ..core.island import Island
from ..core.shards import full
from ..data.source import Source
from ..data.training_loss import TrainingLoss
from ..launch.take_part import elastic_comm
from ..observe.console import Console
from ..observe.observer import Observer
from ..observe.tracker import Tracker, chosen_trackers
from ..period.base import Period
from ..sync.base import Sync
from ..wire.base import Wire
from .closure import closure_first
from .drift import DriftCheck, passport, refuse_other_recipe
from .elastic_loop import ElasticLoop
from .evaluate import EvaluationTask, evaluate, existing_vector_of, health, hold, swapped
from .islands import Levels, island_of, levels_of, refuse_other_rank, tell_island
from .one_example import refuse_one_in_own_loop
from .overflow import agree_on_overflow, stepping_scaler
from .own_checkpoint import found, put_back, save
from .own_loop import (
    check_choices,
    check_elastic_loop,
    check_first_step,
    classes_of,
    fingerprint_of,
    place_of,
    settings_of,
    worker_of,
)
from .paced_drift import PacedDriftCheck
from .repeats import Repeats
from .result import counters
from .run_folder import claim_folder
from .sampler import Sampler
from .state import TrainedPart
from .step import Step


class attach:
    """Let workers that run this same loop train together.

        with eq.attach(model, optimizer, sync=eq.sync.PeriodicAverage(), period=8) as together:
            for x, y in loader:
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()

    On entering, all workers receive worker 0's parameters and buffers. From then on `optimizer.step()` first lets the
    sync see the gradients and afterwards, when the period says so, the parameters; on leaving, the hooks are gone. A
    period counts optimizer steps, so gradient accumulation needs nothing special. The workers are those of torchrun,
    of `eq.spawn`, or this process alone (then nothing is changed).

    clip: the norm to which the gradient is clipped after the sync has combined it. Clipping by hand before
        `optimizer.step()` clips each worker's own gradient, which is something else.
    scaler: the `torch.amp.GradScaler` of the loop; all workers then skip a step if one of them found an overflow.
    scheduler: the learning-rate scheduler of the loop, for checkpoints only; the loop steps it.
    buffers: "local", or "average" to average BatchNorm statistics at each round.
    sampler: the `eq.Sampler` of the loop: its order and batch rule then learn from the gradients, and it knows the
        batch sizes.
    accumulate: batches of that sampler for one optimizer step, where the loop accumulates gradients.
    share: this worker's part of all examples, where workers hold unequal parts; if left out that of the sampler, or
        1 / workers.
    nonfinite: what happens to a NaN or infinity in one worker. "stop" raises an error that names the worker and the
        step, and the last good checkpoint; "skip" lets the step count for nothing, on all workers alike; "leave-out"
        leaves the worker out of the round, after which it goes on from the others' model. The loss is checked where
        the loop sets `together.loss`, the gradient too unless it is "stop".
    final: the model that all workers hold when the block has ended: "mean" or "centre". Left out, each worker keeps
        its own, and they differ; `together.model_state()` gives the agreed one.
    log: a folder for events.jsonl, checkpoints, result.json and model.pt (the mean model), as `eq.train(out=...)`
        writes them; `equipoise report` reads it.
    elastic: "MIN:MAX" lets workers be lost and join while the loop goes on, as long as there are MIN (MIN alone: at
        most as many as there are). deadline: seconds after which a worker that does not answer is left out. See
        "Workers that come and go" in the documentation.
    timeout: seconds to wait for a silent worker. deterministic: sum in rank order, which gives processes the bits of
        virtual workers; the same on all workers. Left out, both are as `eq.spawn` was told, or 300 s and False.
    group: a group of torch.distributed whose processes are the workers, where they are not all of them; for the
        sampler too.
    mesh: a DeviceMesh of two dimensions, where a worker is an island of processes: islands, and ranks inside one. DDP
        or `fully_shard` joins the ranks of an island. See "Islands" in the documentation.
    log_every: steps between logged ones. keep: checkpoints to keep. progress: a progress bar, or lines, on stderr.
    track: show the numbers elsewhere too: "tensorboard", "wandb", "mlflow", several of them, or a `Tracker`.

    Set `together.batch = len(x)` before `optimizer.step()` where batches are unequal and there is no sampler:
    gradients are weighted by it. Set `together.loss` to the loss (a tensor or a number) where a sync follows it (LSGD),
    for events and for `nonfinite`. All workers must take the same number of steps (`eq.Sampler` sees to that). With
    `eq.period.TotalSteps` they need not: end the loop on `together.clock.rounds`, which all workers count alike.
    """

    store: Store  # of checkpoints, once the folder of the log is claimed

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sync: Sync | None = None,
        wire: Wire | None = None,
        period: Period | int | None = None,
        clip: float | None = None,
        scaler: Any = None,
        scheduler: Any = None,
        buffers: str = "local",
        share: float | None = None,
        sampler: Sampler | None = None,
        accumulate: int = 1,
        seed: int = 0,
        nonfinite: str = "stop",
        final: str | None = None,
        log: str | Path | None = None,
        log_every: int = 10,
        keep: int = 2,
        progress: bool = False,
        track: str | Tracker | Sequence[str | Tracker] | None = None,
        elastic: str | int | Elasticity | None = None,
        deadline: float = DEADLINE,
        timeout: float | None = None,
        deterministic: bool | None = None,
        group: Any = None,
        mesh: Any = None,
    ):
        self.levels: Levels | None = None if mesh is None else levels_of(mesh)
        self.island, model = (Island(), model) if self.levels is None else island_of(self.levels, model)
        self.period_choice = chosen_period(period)
        self.sync_choice = chosen_sync(sync, self.period_choice)
        self.wire_choice = chosen_wire(wire)
        self.model, self.optimizer, self.scaler, self.scheduler = model, optimizer, scaler, scheduler
        self.saved_model: nn.Module | TrainedPart = model  # what of it a checkpoint holds
        self.clip, self.buffer_policy, self.share, self.seed = clip, buffers, share, seed
        self.sampler, self.accumulate, self.nonfinite, self.final = sampler, accumulate, nonfinite, final
        self.log = Path(log) if log is not None else None
        self.log_every, self.keep, self.progress, self.trackers = log_every, keep, progress, chosen_trackers(track)
        self.timeout, self.deterministic, self.group = timeout, deterministic, group
        self.batch: int = 1
        self.loss: float | None = None
        self._losses: list[float] = []  # since the last logged step
        self._models: dict[str, dict[str, float]] = {}  # metrics of the last evaluation
        self.claimed = False  # is the log folder this run's?
        self._fresh = True  # has no step been taken by this object yet?
        self._undo, self._since = contextlib.ExitStack(), 0.0  # since when the step in progress takes time
        self.shows = progress or bool(self.trackers)  # the numbers, elsewhere than in the log
        self.limits = elastic, deadline
        self.elastic: ElasticLoop | None = None  # where workers may come and go
        self.repeats = Repeats(self)
        check_choices(self)

    def __enter__(self) -> attach:
        comm = current_comm(self.group) if self.levels is None else self.levels.between
        if self.sampler is not None and self.sampler.comm is not comm:
            raise UserError("the sampler is of other workers: pass the same group= or mesh= to both")
        comm.configure(timeout=self.timeout, deterministic=self.deterministic)
        self.island.configure(timeout=self.timeout, deterministic=self.deterministic)
        limits, deadline = self.limits
        if limits is not None and comm.membership is None:
            comm = self._undo.enter_context(elastic_comm(comm, limits, deadline))
        check_fit(period=self.period_choice, sync=self.sync_choice, wire=self.wire_choice, workers=comm.size)
        self.clock = Clock()
        if comm.membership is not None:
            check_elastic_loop(self, comm.membership)
        self.form(comm, equal=True)
        console = Console(self.clock, lambda: None) if self.progress else None
        shown: dict[str, Any] = {"console": console, "trackers": self.trackers, "choices": fingerprint_of(self)}
        shown |= {"described": self.comm.described, "speaks": self.island.rank == 0}
        self.observer = Observer(self.comm, self.clock, self.log, **shown)
        if comm.membership is not None:
            self.elastic = ElasticLoop(self, comm.membership)
            if self.sampler is not None:
                self.sampler.guard = self.elastic.begin_epoch
            self.elastic.begin()
        self._undo.callback(lambda: self.flat.release())
        self._undo.callback(self.repeats.watch())
        self._undo.callback(self.optimizer.register_step_pre_hook(closure_first(self._before)).remove)
        self._undo.callback(self.optimizer.register_step_post_hook(self._after).remove)
        if self.scaler is not None:
            self._undo.callback(agree_on_overflow(self.scaler, self.optimizer, self.comm, self._skipped))
        self.rested()
        return self

    def form(self, comm: Comm, *, equal: bool) -> None:
        """Become one of the workers behind `comm`; `equal`: all of them receive worker 0's parameters and buffers."""
        self.comm = comm
        told = passport(settings_of(self))
        refuse_other_recipe(comm, told)
        refuse_other_rank(self.island, told, self.share)
        comm.seed = self.seed
        if self.sampler is not None and self.sampler.comm is not comm:
            self.sampler.reform(comm)
        self.step = Step(
            self.model,
            self.optimizer,
            self.comm,
            worker_of(self),
            sync=self.sync_choice,
            wire=self.wire_choice,
            period=self.period_choice,
            clip=self.clip,
            buffers=self.buffer_policy,
            nonfinite=self.nonfinite,
            emit=self._emit,
            clock=self.clock,
            equal=equal,
            island=self.island,
        )
        step = self.step
        step.guard.folder = self.log
        self.flat, self.context, self.sync, self.period = step.flat, step.context, step.sync, step.period
        if (sampler := self.sampler) is not None:
            # With several batches to a step, the order sees each of them as it comes.
            deferred, shared = self.accumulate == 1, comm.membership is not None
            sampler.bind(self.context, lockstep=step.lockstep, deferred=deferred, shared=shared)
            step.follow(sampler.order, sampler.batch)
            step.guard.runs_dry = lambda: sampler.runs_dry
            step.guard.keep_buffers()
        self.drift = PacedDriftCheck(DriftCheck(step, told, lambda: place_of(self)))

    def __exit__(self, *error: Any) -> None:
        try:
            if error[0] is None and self.elastic is None:
                self._conclude()
            elif error[0] is None and self.elastic is not None:
                self.elastic.attempt("finish", self._conclude, None)
            elif self.claimed:
                self.store.leave()
            if self.claimed or self.shows:
                self.observer.__exit__(*error)
        finally:
            self._undo.__exit__(*error)
        refuse_one_in_own_loop(self, error[1])

    def _conclude(self) -> None:
        if self.step.talks and self.step.lockstep:
            self.comm.leave_loop(self.clock.step)
        self.sync.finish()
        if self.nonfinite == "leave-out":
            self.step.guard.meet()  # nobody leaves with a model that is lost
        if self.claimed:
            self.store.wait()
            self._write_result()
        if self.final is not None:
            hold(self.step, self.final)
        if not self.claimed and (self.step.talks or self.island.inside is not None):
            barrier(self.everyone)  # a program that ends takes memory with it from which others may still read

    @property
    def everyone(self) -> Comm:
        """The comm of all processes, each of which has files of its own."""
        return self.comm if self.levels is None else self.levels.everyone

    def outcome(self) -> dict[str, Any]:
        """Every counter over all workers, as in result.json; all workers call it together."""
        departed = self.elastic.departed if self.elastic is not None else None
        result = counters(self.step, described=self.comm.described, departed=departed)
        if self.elastic is not None:
            result["membership"] = self.elastic.history
        if self.sampler is not None:
            result |= self.sampler.position.counts(result["samples"])
        return result | {"models": self._models, "stopped": 0}

    # -- the step ------------------------------------------------------------------------------------------------------
    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._fresh:
            check_first_step(self, stepping_scaler())
        self._fresh = False
        self.repeats.end_step()
        if self.elastic is None:
            self._take_in()
            return
        self._counts = False
        try:
            self._counts = self.elastic.before_step() and self._take_in()
        except PeerLost:
            self.elastic.lost(let_in=True)
        if not self._counts:
            self.flat.zero_gradient(flat=False)

    def _take_in(self) -> bool:
        """The gradient is in place: let the sync see it."""
        self.open_log(resumed=False)
        largest, places = 1, None
        if self.sampler is not None:
            self.batch, largest, places = self.repeats.use(self.sampler)
            self.clock.epoch = self.sampler.epoch
        samples = tell_island(self)
        self.step.begin(samples, largest)
        self.step.computed(samples, time.perf_counter() - self._since)
        # A worker that has run dry was given examples again: their loss is nobody's.
        if not self.step.before(self.loss if self.batch else None, places):
            # Optimizers pass over parameters without a gradient: no momentum, no weight decay, nothing moves.
            self.flat.zero_gradient(flat=False)
        return True

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.elastic is None:
            self._give_back()
        elif self._counts:
            try:
                self._give_back()
                self.elastic.after_step()
            except PeerLost:
                self.elastic.lost(let_in=True)

    def _give_back(self) -> None:
        """The optimizer has moved the model: communicate, and count the step."""
        self.step.after()
        self._count_seconds()
        self.drift.after_step()
        known = self.elastic is None and self.step.lockstep  # without lockstep nobody knows what others have taken
        if self.sampler is not None and known and (self.clock.due or not self.step.talks):
            self.sampler.position.confirm(self.sampler.taken_by_steps())
        if self.loss is not None and self.batch and math.isfinite(self.loss):
            self._losses.append(self.loss)
        if self.clock.step % self.log_every == 0 and (self.claimed or self.shows):
            self.observer.stepped(sum(self._losses) / len(self._losses) if self._losses else math.nan)
            self._losses = []
        self.step.depart()

    def _skipped(self) -> None:
        """The scaler met an overflow: the batch was used, by a step that no worker takes."""
        self.repeats.end_step()
        if self.sampler is not None:
            _, _, places = self.repeats.use(self.sampler)
            self.step.guard.keep_buffers()
            if self.sampler.order.learning and places is not None:
                self.sampler.order.observe(places[:0], None)

    def _count_seconds(self) -> None:
        """The time since the last step ended, or since an evaluation or a checkpoint did, belongs to this step."""
        self.clock.seconds += time.perf_counter() - self._since
        self.rested()

    def rested(self) -> None:
        """What was done until now belongs to no step."""
        self._since = time.perf_counter()

    # -- evaluation ----------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def evaluating(self, name: str = "mean") -> Iterator[nn.Module]:
        """The model with the parameters of `local`, `mean` or `centre`, in eval mode; all workers enter together.

        Nothing of the training state changes: parameters and buffers are back when the block ends.
        """
        self.step.guard.meet()
        with self.comm.uncounted():
            vector = existing_vector_of(self.step, name)
            training = self.model.training
            self.model.eval()
            try:
                with swapped(self.step, vector, own=name == "local"):
                    yield self.model
            finally:
                self.model.train(training)
                self.rested()

    def model_state(self, name: str = "mean") -> dict[str, torch.Tensor]:
        """The state_dict of the model `mean` or `centre`, the same on all workers, who call it together.

        Each worker trains a model of its own: save this one, inside the block or after it. BatchNorm's statistics are
        the mean of all workers'.
        """
        with self.evaluating("mean" if self.comm.size == 1 else name):
            return {key: full(value) for key, value in self.model.state_dict().items()}

    def evaluate(
        self,
        data: Any,
        loss: Callable[[Any, Any], torch.Tensor] | None,
        names: tuple[str, ...] = ("mean", "centre"),
        metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    ) -> dict[str, dict[str, float]]:
        """Loss (and accuracy, for class labels) of the named models on `data`; all workers call it together.

        loss: None where the model returns its own. metrics: `metric(outputs, targets)` by name, a mean over a batch.
        The numbers are the same on all workers, and stand in the events and in result.json where there is a `log`.
        """
        device = next(self.model.parameters()).device
        source = data if isinstance(data, Source) else Source(data)
        task = EvaluationTask(source, TrainingLoss(loss, metrics), device)

        def all_together() -> dict[str, dict[str, float]]:
            self.step.guard.meet()
            return evaluate(self.step, task, names)

        if self.elastic is None:
            self._models = all_together()
        else:
            self._models = self.elastic.attempt("evaluate", all_together, self._models)
        self.rested()
        if self.claimed or self.shows:
            self.observer.evaluated(self._models, health(self.step))
        return self._models

    # -- the log -------------------------------------------------------------------------------------------------------
    def open_log(self, *, resumed: bool, checkpoint: Path | None = None) -> None:
        """At the first step or at a resume: before that nothing is known to be worth keeping."""
        if self.claimed or (self.log is None and (not self.shows or self.clock.step)):
            return
        if self.log is not None:
            claim_folder(self.everyone, self.log, resumed=resumed)
            self.open_store(checkpoint)
        self.observer.__enter__()
        self.observer.started(resumed=resumed, examples=self.context.worker.examples, classes=classes_of(self))

    def open_store(self, checkpoint: Path | None = None) -> None:
        """The folder of the log is this run's. checkpoint: from which it goes on."""
        assert self.log is not None
        self.store = Store(self.everyone, self.log, self.keep, checkpoint, self._saved)
        self.observer.keeps = self.store.places.leads(self.everyone.rank)
        self.claimed = True

    def _write_result(self) -> None:
        result, state = self.outcome(), self.model_state()
        if self.observer.keeps:
            assert self.log is not None
            save_weights(state, self.log / "model.pt")
        self.observer.finished(result)

    def _emit(self, event: str, **fields: Any) -> None:
        self.observer.emit(event, **fields)

    # -- checkpoints ---------------------------------------------------------------------------------------------------
    def checkpoint(self, *, wait: bool = False) -> Path:
        """Write everything that decides the rest of the loop to the `log` folder; all workers call it together.

        Model, optimizer, scheduler, scaler, sampler, sync, period, counters and random generators, one file per worker,
        written beside and renamed into place. The loop goes on while a copy is written. The next checkpoint, the end of
        the block, or `wait=True` wait for that, and raise an error on all workers if it failed.
        """
        if self.log is None:
            raise UserError("checkpoint() needs a folder: pass log='runs/mine' to eq.attach")
        if self.elastic is None:
            return self.save(wait)
        return self.elastic.attempt("checkpoint", lambda: self.save(wait), self.log / "checkpoints")

    def save(self, wait: bool = True) -> Path:
        """A checkpoint, without looking after workers that are lost meanwhile."""
        self.open_log(resumed=False)
        path = save(self, wait)
        self.rested()
        return path

    def _saved(self, path: Path) -> None:
        self._emit("checkpoint", path=path.name, step=int(path.name.removeprefix("step-")))

    def resume(self, step: int | None = None) -> int:
        """Go on from the newest checkpoint in the `log` folder, or from that of a step, to the same bits.

        Call it first inside the `with` block, on all workers. Returns the number of steps that were taken; 0 if there
        is no checkpoint yet, so that a loop can always call it. A `DataLoader(generator=...)` is not in a checkpoint:
        seed it by the number of the epoch. Without an `eq.Sampler` make checkpoints at the end of an epoch only.
        """
        if self.log is None:
            raise UserError("resume() needs a folder: pass log='runs/mine' to eq.attach")
        if (path := found(self, step)) is None:
            return 0
        put_back(self, path)
        self.open_log(resumed=True, checkpoint=path)
        if self.elastic is not None:
            self.elastic.saved()
        self.rested()
        return self.clock.step

    def state_dict(self) -> dict[str, Any]:
        """What methods and counters of this worker need to go on, for a loop that writes its own checkpoints."""
        state = self.step.state_dict()
        if self.sampler is not None:
            state["sampler"] = self.sampler.state_dict(self.sampler.finished)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`, inside the `with` block.

        Load the model and the optimizer there too: entering made all workers equal.
        """
        self.step.load_state_dict(state)
        if self.sampler is not None and "sampler" in state:
            self.sampler.load_state_dict(state["sampler"])
            self.step.guard.keep_buffers()
