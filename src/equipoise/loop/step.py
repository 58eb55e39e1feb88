"""The one step of a worker: what happens around `optimizer.step()`, in `eq.train` and in a user's own loop alike.

begin -> forward, backward -> computed -> before: observe, sync.before_step
      -> optimizer.step() -> after: sync.after_step, count -> depart
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ..batch.base import Batch
from ..comm.base import Comm
from ..core.clock import Clock
from ..core.context import Context, Forecast, WorkerInfo, no_op_emit
from ..core.island import Island
from ..core.random import follow_generator
from ..core.vector import Buffers, Flat
from ..order.base import Order
from ..period.base import Period
from ..sync.base import StepPlan, Sync
from ..sync.none import NoSync
from ..sync.shares import mean_of, parts_of
from ..wire.base import Wire
from .fresh_gradients import FreshGradients
from .make_equal import make_equal
from .nonfinite import Guard


class Step:
    """One worker's model, optimizer and methods, and the order in which they act.

    On construction all workers receive worker 0's parameters and buffers, unless `equal` is False. `begin`, `before`
    and `after` are then called once per step; between `before` and `after` the optimizer takes its step, if `before`
    returned True.
    """

    order: Order | None = None
    batch: Batch | None = None

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        comm: Comm,
        worker: WorkerInfo,
        *,
        sync: Sync,
        period: Period,
        wire: Wire,
        clip: float | None = None,
        buffers: str = "local",
        nonfinite: str = "stop",
        emit: Callable[..., None] = no_op_emit,
        fresh_gradients: FreshGradients | None = None,
        example_gradients: Callable[[int], list[torch.Tensor]] | None = None,
        clock: Clock | None = None,
        forecast: Forecast | None = None,
        equal: bool = True,
        island: Island | None = None,
    ):
        self.model, self.optimizer, self.comm = model, optimizer, comm
        self.buffer_policy = buffers
        self.flat, self.buffers = Flat(model), Buffers(model)
        follow_generator(self.flat.x.device)
        island = island or Island()
        for each in (comm, island.inside):
            if each is not None:
                each.use_device(self.flat.x.device)
        if equal:
            make_equal(comm, model, self.flat)
        # With one worker there is nobody to talk to: every method is the plain optimizer.
        chosen = sync if comm.size > 1 else NoSync()
        self.clock = Clock() if clock is None else clock
        self.wire = wire.bind(Context(comm, self.clock, worker, flat=self.flat))
        self.compressed = chosen.takes_wires(comm.size)[0] != "none" and not wire.plain
        self.context = Context(
            comm,
            self.clock,
            worker,
            flat=self.flat,
            wire=self.wire if self.compressed else None,
            optimizer=optimizer,
            island=island,
            clip=clip,
            # A batch rule can add to sums of the vectors themselves, not of their codes.
            averages="" if self.compressed else chosen.averages(),
            lockstep=period.lockstep,
            fresh_gradients=fresh_gradients,
            example_gradients=example_gradients,
            forecast=forecast,
            emit=emit,
        )
        self.period = period.bind(self.context)
        self.sync = chosen.bind(self.context)
        self.talks = not isinstance(self.sync, NoSync)
        self.lockstep = self.period.lockstep or not self.talks
        self.needs_flat = self.sync.uses_gradient or nonfinite != "stop"
        self.plan = StepPlan()
        self._due = False  # does the period ask for a round, whoever is there to take part?
        self._samples = 0
        self._rates: list[Any] | None = None  # of the optimizer, while a batch rule has them multiplied
        self.guard = Guard(self, nonfinite)

    def follow(self, order: Order | None, batch: Batch) -> None:
        """Let an order and a batch rule, bound to this step's context, observe the gradients from now on."""
        self.order, self.batch = order, batch

    def begin(self, samples: int, largest_batch: float = 1.0) -> None:
        """A step on `samples` examples of this worker begins."""
        clock = self.clock
        clock.batch, clock.largest_batch, self._samples = samples, largest_batch, samples
        self._multiply_rates(1.0 if self.batch is None else self.batch.lr_gain(largest_batch))
        clock.lr = self.optimizer.param_groups[0]["lr"]
        asked = self.talks or (self.batch is not None and self.batch.watches)
        self._due = self.lockstep and asked and self.period.due(clock)
        clock.due = self.talks and self._due
        self.comm.step = clock.step + 1

    def _multiply_rates(self, gain: float) -> None:
        """For one step: schedules and checkpoints see the rates as they were."""
        groups = self.optimizer.param_groups
        if self._rates is not None:
            for group, rate in zip(groups, self._rates, strict=True):
                group["lr"] = rate
            self._rates = None
        if gain != 1.0:
            self._rates = [group["lr"] for group in groups]
            for group in groups:
                group["lr"] = group["lr"] * gain

    def computed(self, cost: float, seconds: float) -> None:
        """The gradient took real `seconds`; on a described cluster, the time of `cost` examples."""
        simulated = self.comm.computed(cost)
        self.clock.busy += simulated if self.comm.virtual else seconds
        if not self.comm.described:
            self.comm.ledger.compute += seconds
        while self.comm.absences:
            since, until = self.comm.absences.pop(0)
            self.context.emit("away", since=since, until=until)

    def before(
        self,
        loss: float | None = None,
        places: np.ndarray | None = None,
        examples: Sequence[int] = (),
        total: float | None = None,
    ) -> bool:
        """The gradient is in place. Observe it, let the sync combine it; True if the optimizer may take its step.

        places: of this batch in the worker's block, for an order that learns. examples: their indices, for error
            messages. total: the sum of the gradient, where it was read together with the loss.
        """
        clock, flat = self.clock, self.flat
        clock.loss = math.nan if loss is None else loss
        if clock.batch == 0:
            flat.zero_gradient(self.needs_flat)
        x, g = flat.gather(), flat.gradient() if self.needs_flat else None
        if clock.batch and not self.guard.accepts(loss, g, examples, total):
            clock.batch = 0
        if clock.due and self.sync.sends_before_step():
            self.guard.before_sending()
        piggyback = None
        if self.batch is not None and self.batch.watches:
            piggyback = self.batch.observe(clock.due or (self._due and self.comm.size == 1))
        if self.order is not None and self.order.learning and places is not None:
            view = self.order.watcher.view() if clock.batch else None
            self.order.observe(places if clock.batch else places[:0], view)
        if self.compressed:
            self.wire.start(x)
        else:
            self.sync.carry(piggyback)
        self.plan = self.sync.before_step(x, g) or StepPlan()
        if self.plan.alarm:
            self.guard.alarm()
        if g is not None:
            flat.scatter_gradient()
        flat.scatter()
        runs = self.plan.optimize and bool(clock.batch or self.sync.idle_steps)
        if runs and self.context.clip is not None:
            nn.utils.clip_grad_norm_(flat.parameters.values(), self.context.clip)
        return runs

    def after(self) -> None:
        """The optimizer has taken its step, or rested: communicate if a round is due, then count the step."""
        clock, flat = self.clock, self.flat
        if not self.lockstep:
            clock.due = self.period.due(clock)
        if clock.due and not self.sync.sends_before_step():
            self.guard.before_sending()
        if clock.due or self.plan.message_arrives:
            self.sync.after_step(flat.gather())
            flat.scatter()
            if clock.due and self.buffer_policy == "average":
                self.average_buffers()
        if self.batch is not None and self.batch.watches:
            self.batch.settle()
        self._multiply_rates(1.0)
        clock.step += 1
        clock.samples += self._samples
        self.guard.keep_buffers()

    def depart(self) -> None:
        """The next gradient is about to be computed: let the sync send what may travel meanwhile."""
        if self.clock.due:
            self.sync.depart(self.flat.gather())

    def average_buffers(self) -> None:
        """BatchNorm's statistics become the mean over all workers by their parts of the data, and over the ranks of an
        island.
        """
        if len(self.buffers):
            self.buffers.scatter(self.mean_by_data(self.buffers.gather()))

    def mean_by_data(self, vector: torch.Tensor) -> torch.Tensor:
        """The mean of a statistic over all workers by their parts of the data, and over an island's ranks."""
        # In half precision what all workers hold alike would change from round to round.
        wide = vector.to(torch.promote_types(vector.dtype, torch.float32))
        return self.context.island.mean(mean_of(self.context, wide, parts_of(self.context)))

    def sync_state(self) -> dict[str, Any]:
        """What the sync keeps, as it is now: no copies, and nothing that would wait for a message."""
        return {name: getattr(self.sync, name) for name in self.sync.STATE if name not in self.sync.in_flight}

    # -- state ---------------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Counters, sync, wire and period of this worker."""
        return {
            "clock": self.clock.state_dict(),
            "ledger": self.comm.ledger.state_dict(),
            "now": self.comm.now,
            "sync": self.sync.state_dict(),
            "wire": self.wire.state_dict(),
            "period": self.period.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.clock.load_state_dict(state["clock"])
        self.comm.ledger.load_state_dict(state["ledger"])
        if self.comm.virtual:
            self.comm.now = state["now"]  # type: ignore[misc]
        self.sync.finish()  # a round in flight belongs to the state that is left
        self.wire.finish()
        self.sync.load_state_dict(state["sync"])
        self.wire.load_state_dict(state["wire"])
        self.period.load_state_dict(state["period"])
        self.guard.keep_buffers()
