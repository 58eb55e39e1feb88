"""`eq.attach`: any sync and period on a user's own loop."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..comm.base import Comm
from ..core.context import Context
from ..core.errors import UserError
from ..core.vector import Buffers, Flat
from ..period.base import Period
from ..period.every import Every
from ..sync.all_reduce import AllReduce
from ..sync.base import Sync
from ..sync.none import NoSync
from ..sync.periodic_average import PeriodicAverage
from .control import make_equal
from .job import refuse_own_pace, refuse_rare_rounds
from .sampler import Sampler


class attach:
    """Let workers that run this same loop train together.

        with eq.attach(model, optimizer, sync=eq.sync.PeriodicAverage(), period=8) as together:
            for x, y in loader:
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()

    On entering, all workers receive worker 0's parameters and buffers. From then on `optimizer.step()` first lets the sync
    see the gradients and afterwards, when the period says so, the parameters; on leaving, the hooks are gone. A period
    counts optimizer steps, so gradient accumulation needs nothing special. The workers are those of torchrun, of
    `eq.spawn`, or this process alone (then nothing is changed).

    clip: the norm to which the gradient is clipped after the sync has combined it. Clipping by hand before
        `optimizer.step()` clips each worker's own gradient, which is something else.
    scaler: the `torch.amp.GradScaler` of the loop; all workers then skip a step if one of them found an overflow.
    buffers: "local", or "average" to average BatchNorm statistics at each round.
    sampler: the `eq.Sampler` of the loop, whose batch rule may then follow the gradients and which knows the batch sizes.
        Its DataLoader must not draw ahead (num_workers=0).
    accumulate: most batches of that sampler for one optimizer step, where the loop accumulates gradients.
    share: this worker's part of all examples, where workers hold unequal parts; if left out that of the sampler, or 1 / workers.

    Set `together.batch = len(x)` before `optimizer.step()` where batches are unequal: gradients are weighted by it.
    All workers must take the same number of steps (`eq.Sampler` sees to that). With `eq.period.TotalSteps` they need not: end the
    loop on `together.clock.rounds`, which all workers count alike. A sync that follows the loss (LSGD) reads
    `together.loss`: set it before `optimizer.step()`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sync: Sync | None = None,
        period: Period | int | None = None,
        clip: float | None = None,
        scaler: Any = None,
        buffers: str = "local",
        share: float | None = None,
        sampler: Sampler | None = None,
        accumulate: int = 1,
        seed: int = 0,
    ):
        self.period_choice = Every(period) if isinstance(period, int) else (period or Every())
        if sync is None:
            sync = AllReduce() if self.period_choice == Every() else PeriodicAverage()
        refuse_own_pace(self.period_choice, sync)
        refuse_rare_rounds(self.period_choice, sync)
        if buffers not in ("local", "average"):
            raise UserError(f"buffers = {buffers!r}: local or average")
        trainable = {id(p) for p in model.parameters() if p.requires_grad}
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not trainable <= held:
            raise UserError(
                "the optimizer does not hold all trainable parameters of the model: build it from model.parameters()"
            )
        self.sync_choice, self.model, self.optimizer = sync, model, optimizer
        self.clip, self.scaler, self.buffer_policy, self.share, self.seed = clip, scaler, buffers, share, seed
        self.sampler, self.accumulate = sampler, accumulate
        self.batch = 1
        self.loss = math.nan
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> attach:
        from ..comm.current import current_comm

        self.comm: Comm = current_comm()
        self.flat, self.buffers = Flat(self.model), Buffers(self.model)
        make_equal(self.comm, self.model, self.flat)
        own = 1.0 / self.comm.size if self.sampler is None else self.sampler.position.context.share
        share = self.share if self.share is not None else own
        self.context = Context(self.comm, seed=self.seed, share=share, flat=self.flat)
        self.context.shares = self.comm.gather_objects(share)
        self.clock, self.context.optimizer, self.context.clip = self.context.clock, self.optimizer, self.clip
        if self.sampler is not None:
            self.sampler.follow(self.context)
        self.sync = (self.sync_choice if self.comm.size > 1 else NoSync()).bind(self.context)
        self.period = self.period_choice.bind(self.context)
        self._talks = not isinstance(self.sync, NoSync)
        self._undo.callback(self.optimizer.register_step_pre_hook(self._before).remove)
        self._undo.callback(self.optimizer.register_step_post_hook(self._after).remove)
        if self.scaler is not None and self.comm.size > 1:
            self._agree_on_overflow()
        return self

    def __exit__(self, *error: Any) -> None:
        self._undo.close()
        if error[0] is None:
            self.sync.finish()

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if any(a is not None for a in (*args[1:], kwargs.get("closure"))):
            raise UserError("optimizer.step(closure) computes gradients inside the step: call backward() before step()")
        clock, flat = self.clock, self.flat
        if self.sampler is not None:
            self.batch = self.sampler.stepping(self.accumulate)
        self.comm.step = clock.step + 1
        self.comm.computed(self.batch)
        clock.batch, clock.lr, clock.hold = self.batch, optimizer.param_groups[0]["lr"], False
        self.context.loss = self.loss
        clock.due = self._talks and self.period.lockstep and self.period.due(clock)
        g = flat.gradient() if self.sync.uses_gradient else None
        if self.sampler is not None:
            self.context.reference = max(self.sampler.batch.sizes())
            self.sampler.batch.observe(clock.due)
        self.sync.before_step(flat.gather(), g)
        if g is not None:
            flat.scatter_gradient()
        flat.scatter()
        if clock.hold:
            # Optimizers pass over parameters without a gradient: no momentum, no weight decay, nothing moves.
            flat.zero_gradient(flat=False)
        elif self.clip is not None:
            nn.utils.clip_grad_norm_(flat.parameters.values(), self.clip)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        clock, flat = self.clock, self.flat
        if self._talks and not self.period.lockstep:
            clock.due = self.period.due(clock)
        if clock.due or self.sync.lands:
            self.sync.after_step(flat.gather())
            flat.scatter()
            if clock.due and self.buffer_policy == "average" and len(self.buffers):
                self.buffers.scatter(self.comm.mean(self.buffers.gather()))
        if self.sampler is not None:
            self.sampler.batch.settle()
        clock.step += 1
        clock.samples += self.batch

    def _agree_on_overflow(self) -> None:
        """Before the scaler decides whether to step, every worker learns whether any of them overflowed."""
        scaler, original = self.scaler, self.scaler.step

        def step(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if optimizer is self.optimizer and scaler.is_enabled():
                state = scaler._per_optimizer_states[id(optimizer)]
                if not state["found_inf_per_device"]:
                    scaler.unscale_(optimizer)
                with self.comm.uncounted():
                    for found in state["found_inf_per_device"].values():
                        found.copy_(self.comm.sum(found.clone()).clamp(max=1.0))
            return original(optimizer, *args, **kwargs)

        scaler.step = step
        self._undo.callback(lambda: delattr(scaler, "step"))

    @contextlib.contextmanager
    def evaluating(self, name: str = "mean") -> Iterator[nn.Module]:
        """The model with the parameters of `local`, `mean` or `centre`, in eval mode; all workers enter together.

        Nothing of the training state changes: parameters and buffers are back when the block ends.
        """
        from .evaluate import swapped, vector_of

        with self.comm.uncounted():
            vector = vector_of(self, name)
            if vector is None:
                raise UserError(f"{type(self.sync).__name__} has no {name}: evaluate local or mean")
            training = self.model.training
            self.model.eval()
            try:
                with swapped(self, vector, own=name == "local"):
                    yield self.model
            finally:
                self.model.train(training)

    def state_dict(self) -> dict[str, Any]:
        """What the sync, the period and the counters of this worker need to go on; save it per worker."""
        return {
            "clock": self.clock.state_dict(),
            "ledger": self.comm.ledger.state_dict(),
            "sync": self.sync.state_dict(),
            "period": self.period.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`, inside the `with` block. Load the model and the optimizer there too: entering made all workers equal."""
        self.clock.load_state_dict(state["clock"])
        self.comm.ledger.load_state_dict(state["ledger"])
        self.sync.finish()  # a round that is under way belongs to the state that is left
        self.sync.load_state_dict(state["sync"])
        self.period.load_state_dict(state["period"])
