"""Numbers that are not finite, in one worker: noticed before they are sent, and handled alike by all.

- stop: the worker raises before it sends anything; the others hear why it ended.
- skip: a step whose loss or gradient is bad counts for nothing. A model that is bad stops the run.
- leave-out: so does it; besides, a worker that takes local steps is left out of the round that follows. A worker
  whose model or state is bad is left out too. It takes over the others' model (see `take_over`).

What is looked at: the loss in every step; what a sync is about to send, at a round; everything that a checkpoint keeps,
before it is written. With leave-out, workers tell each other at every round whether they are well: in one byte, or by
the weights that a sync sends anyway. A round of the latter kind that one of them has spoiled is dropped by all.
Where a worker is an island of several ranks, what one of them finds is found by all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..checkpoint.store import settled
from ..comm.ledger import gather_cost
from ..core.errors import NonFinite
from ..core.finite import first_not_finite, is_finite
from ..sync.base import Sync
from ..sync.none import NoSync
from .take_over import take_over

if TYPE_CHECKING:
    from .step import Step

KINDS = {
    "loss": "the loss is",
    "gradient": "the gradient is",
    "wire": "what the wire keeps is",
    "parameters": "the parameters are",
    "state": "the state of the sync is",
    "buffers": "the buffers are",
    "optimizer": "the state of the optimizer is",
}


class Fault(NamedTuple):
    """What is not finite, and in words."""

    kind: str
    words: str

    @property
    def passes(self) -> bool:
        """Is it gone with the step, because nothing has been changed by it?"""
        return self.kind in ("loss", "gradient")


class Guard:
    """Watches the numbers of one worker, by policy."""

    def __init__(self, step: Step, policy: str):
        self.step, self.comm, self.policy, self.island = step, step.comm, policy, step.context.island
        self.folder: Path | None = None  # of the run, where it writes checkpoints
        self.examples: Sequence[int] = ()  # of this step's batch, for error messages
        # May the loop run the model in a step for which this worker has no examples?
        self.runs_dry: Callable[[], bool] = lambda: False
        sync = step.sync
        # A worker's gradient is looked at where nothing else would be before it is sent.
        self.watches_gradient = policy != "stop" or (sync.uses_gradient and sync.sends_before_step())
        self.one_model = sync.averages() == "gradient"  # all workers hold the same
        self.leaves_out = policy == "leave-out" and step.talks and not sync.needs().every_step
        self._left: Fault | None = None  # why this worker is left out of the next round
        self._infinite = {name for name, b in step.model.named_buffers() if not _bounded(b)}  # masks, from the start
        self.keep_buffers()

    # -- the step ------------------------------------------------------------------------------------------------------
    def accepts(self, loss: float | None, g: torch.Tensor | None, examples: Sequence[int], total: float | None) -> bool:
        """False where this step must not count: its gradient is zeroed and has no weight, on all workers alike.

        total: the sum of the gradient, if it was read with the loss.
        """
        self.examples = examples
        found = None
        if loss is not None and not math.isfinite(loss):
            found = Fault("loss", f"the loss is {loss}")
            if not self.island.all(is_finite(self.step.flat.gather())):
                found = Fault("parameters", f"{found.words}, and parameters are not finite")
        elif self.watches_gradient and g is not None:
            if not (is_finite(g) if total is None else _sums_to(total, g)):
                found = Fault("gradient", f"{KINDS['gradient']} not finite")
            found = self._inside(found)
        if found is None:
            return True
        if self.policy == "stop" or (self.policy == "skip" and not found.passes):
            raise self._tell(self._error(found, self._step))
        assert g is not None
        g.zero_()
        self.restore_buffers()  # BatchNorm has seen what made the loss NaN
        if self._left is None:
            self.step.context.emit(self.policy, reason=found.words)
        if self.leaves_out or not found.passes:
            self._left = found
        return False

    def before_sending(self) -> None:
        """A round is next. With leave-out all workers agree on who takes part; else one that is bad stops."""
        found = self._left or self._look(everything=self.policy == "leave-out")
        if self.policy != "leave-out":
            if found is not None:
                raise self._tell(self._error(found, self._step))
            return
        if found is not None and self._left is None:
            self.step.context.emit(self.policy, reason=found.words)
        if self.step.sync.tells:
            self.step.clock.sound, self._left = found is None, found
            if found is not None and found.kind == "wire":
                self.step.wire.forget()  # or the sum that shall tell would be spoiled
        else:
            self._agree(found)

    def alarm(self) -> None:
        """The round has told all workers that one of them is not well."""
        self._agree(self._left)

    def _agree(self, found: Fault | None) -> None:
        """Everybody learns what everybody has found."""
        told = self.comm.gather(torch.tensor([_code_of(found)], dtype=torch.uint8)).flatten().tolist()
        self._settle([_fault_of(code) for code in told], self._step)

    def _inside(self, found: Fault | None) -> Fault | None:
        """What this rank or another one of its island has found."""
        if self.island.inside is None:
            return found
        code = self.island.any_code(_code_of(found))
        return found if code == _code_of(found) else _fault_of(code)

    def meet(self) -> None:
        """All workers are about to save or to evaluate what they hold. All of it is finite then, or all raise."""
        found = self._look(everything=True)
        faults: list[Fault | None] = self.comm.gather_objects(found)
        if self.policy == "leave-out":
            if found is not None:
                self.step.context.emit(self.policy, reason=found.words)
            with self.comm.uncounted():
                self._settle(faults, self.step.clock.step)
        elif any(faults):
            raise self._error_of_all(faults, self.step.clock.step)

    def _settle(self, faults: list[Fault | None], step: int) -> None:
        """Those who are well go on, the others take over their model. All know all faults."""
        bad = {rank: found for rank, found in enumerate(faults) if found is not None}
        if not bad:
            return
        if len(bad) == self.comm.size:
            raise self._error_of_all(faults, step)
        take_over(self.step, list(bad), one_model=self.one_model, wire=any(f.kind == "wire" for f in bad.values()))
        if self.comm.rank in bad:
            self._left, self.step.clock.sound = None, True

    # -- looking -------------------------------------------------------------------------------------------------------
    def _look(self, *, everything: bool) -> Fault | None:
        """The first thing that is not finite, of what a round sends or of `everything` that a checkpoint keeps."""
        step = self.step
        # The wire first: where it is lost, more is lost than a worker's own.
        parts: dict[str, Any] = {"wire": step.wire.channel_states} if step.compressed else {}
        if everything or not self.one_model:
            parts["parameters"] = step.flat.gather()
        whole = everything or step.compressed  # a code depends on what it is taken from too
        parts["state"] = step.sync_state() if whole else step.sync.sent_with_model()
        if everything:
            parts["buffers"] = {n: b for n, b in step.model.named_buffers() if n not in self._infinite}
            parts["optimizer"] = step.optimizer.state_dict()["state"]
        place = first_not_finite(parts)
        if place is None:
            return self._inside(None)
        kind, _, path = place.partition(".")
        return self._inside(Fault(kind, f"{KINDS[kind]} not finite{f' ({path})' if path else ''}"))

    @property
    def _step(self) -> int:
        """The number of the step in progress."""
        return self.step.clock.step + 1

    # -- errors --------------------------------------------------------------------------------------------------------
    def _error(self, found: Fault, step: int, rank: int | None = None) -> NonFinite:
        rank = self.comm.rank if rank is None else rank
        on, policy = "", "skip" if found.passes else "leave-out"
        if found.passes and len(self.examples):
            on = f" on examples {list(self.examples[:8])}{'...' if len(self.examples) > 8 else ''}"
        text = f"worker {rank}, step {step}: {found.words}{on}; lower the learning rate, fix the data"
        if self.policy == "leave-out":
            text += "; no worker is left whose numbers are finite"
        else:
            text += f", or pass nonfinite='{policy}' (--nonfinite {policy})"
        checkpoints = settled(self.folder) if self.folder is not None else []
        if checkpoints:
            text += f"; the last good checkpoint is {checkpoints[-1]}"
        return NonFinite(text, rank, step)

    def _error_of_all(self, faults: list[Fault | None], step: int) -> NonFinite:
        """The same on every worker."""
        rank, found = next((rank, found) for rank, found in enumerate(faults) if found is not None)
        self.examples = ()  # of this worker, which need not be the one that is named
        return self._error(found, step, rank)

    def _tell(self, error: NonFinite) -> NonFinite:
        """Let those who wait for this worker raise the same."""
        self.comm.leave_word(error)
        return error

    # -- buffers -------------------------------------------------------------------------------------------------------
    def keep_buffers(self) -> None:
        """Remember the buffers, for a step that will not count. Also called when a model was loaded from outside."""
        needed = self.policy != "stop" or self.runs_dry()
        self._kept = [b.clone() for b in self.step.model.buffers()] if needed else []

    @torch.no_grad()
    def restore_buffers(self) -> None:
        """As they were kept, where they were."""
        for buffer, before in zip(self.step.model.buffers(), self._kept, strict=False):
            buffer.copy_(before)


def _code_of(found: Fault | None) -> int:
    return 0 if found is None else 1 + list(KINDS).index(found.kind)


def _fault_of(code: int) -> Fault | None:
    kind = list(KINDS)[code - 1]
    return Fault(kind, f"{KINDS[kind]} not finite") if code else None


def _sums_to(total: float, vector: torch.Tensor) -> bool:
    """Is a vector finite whose sum is known? Of huge numbers it may overflow."""
    return math.isfinite(total) or bool(vector.isfinite().all())


def _bounded(buffer: torch.Tensor) -> bool:
    return not buffer.is_floating_point() or is_finite(buffer)


def agreement_cost(policy: str, sync: Sync, size: int) -> tuple[int, int]:
    """Messages and bytes that a worker sends at a round in which all are well, besides those of the sync."""
    asks = policy == "leave-out" and size > 1 and not (sync.tells or isinstance(sync, NoSync))
    return gather_cost(1, 1, size) if asks else (0, 0)
