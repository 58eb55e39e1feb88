"""What a worker keeps in memory, so that it can go back to the last point that all workers have reached.

All workers take a snapshot, and then meet. Whoever has left that meeting knows that everybody has come so far, and has
the snapshot. Whoever waits there may find that another worker never came: the two newest ones are kept.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..core.copied import copied
from ..core.device import on_device
from ..core.method import Method
from ..core.random import rng_state, set_rng_state

if TYPE_CHECKING:
    from .data_position import DataPoint, DataPosition
    from .step import Step

Label = tuple[int, int]  # generation and step; without lockstep, the round


class Done(NamedTuple):
    """What a worker has done, or several of them."""

    samples: int = 0
    messages: int = 0
    bytes: int = 0


class Parts(NamedTuple):
    """What `eq.train` and `eq.attach` have in common, for one generation."""

    step: Step
    position: DataPosition | None  # None: the loop has no sampler, and finds its examples by itself
    others: dict[str, Any]  # with a state of their own: scheduler, scaler
    plain: dict[str, Any]  # values that are the same on all workers
    at: DataPoint | None = None  # where the loop is, if its loader is ahead


def kept(method: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(method, name) for name in names}


def common_state(parts: Parts) -> dict[str, Any]:
    """What is the same on all workers, and what a newcomer needs."""
    step = parts.step
    return {
        "kind": type(step.sync).__name__,
        "sync": kept(step.sync, step.sync.COMMON),
        "wire": {name: kept(channel, channel.COMMON) for name, channel in step.wire.channels.items()},
        "period": kept(step.period, step.period.STATE),
        "batch": kept(step.batch, step.batch.COMMON) if step.batch is not None else {},
        "clock": step.clock.state_dict(),
        "now": step.comm.now,
        # Without lockstep no loader is ahead, and what all have taken is known from a meeting alone.
        "position": parts.position.rest(parts.at if step.lockstep else None) if parts.position is not None else None,
        "plain": parts.plain,
        # Not the same on all, but a good start for a newcomer.
        "model": step.model.state_dict(),
        "optimizer": step.optimizer.state_dict(),
        "others": {name: other.state_dict() for name, other in parts.others.items() if other is not None},
    }


def own_state(parts: Parts) -> dict[str, Any]:
    """What belongs to this worker alone."""
    step = parts.step
    return {
        "sync": kept(step.sync, step.sync.OWN),
        "wire": {name: kept(channel, channel.OWN) for name, channel in step.wire.channels.items()},
        "ledger": step.comm.ledger.state_dict(),
        "rng": rng_state(),
    }


def load_common(parts: Parts, state: dict[str, Any]) -> None:
    """Put back what `common_state` gave, on the workers of another generation."""
    step = parts.step
    step.model.load_state_dict(state["model"])
    step.optimizer.load_state_dict(cloned(state["optimizer"]))
    for name, other in parts.others.items():
        if other is not None:
            other.load_state_dict(cloned(state["others"][name]))
    step.clock.load_state_dict(state["clock"])
    if step.comm.virtual:
        step.comm.now = max(step.comm.now, state["now"])  # type: ignore[misc]
    load(step.period, state["period"])
    if step.batch is not None:
        load(step.batch, state["batch"])
    if state["kind"] == type(step.sync).__name__:  # a worker alone talks to nobody
        load(step.sync, state["sync"])
        for name, values in state["wire"].items():
            load(step.wire.channels[name], values)


def load_own(parts: Parts, state: dict[str, Any], kind: str) -> None:
    step = parts.step
    step.comm.ledger.load_state_dict(state["ledger"])
    set_rng_state(state["rng"])
    if kind == type(step.sync).__name__:
        load(step.sync, state["sync"])
        for name, values in state["wire"].items():
            load(step.wire.channels[name], values)


def load(method: Method | Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(method, Method):
            method.put(name, cloned(value))
        else:  # a channel of a wire
            setattr(method, name, on_device(cloned(value), method.context.flat.x.device))


class Snapshots:
    """The two newest ones. Their memory is used again: a snapshot costs a copy."""

    def __init__(self) -> None:
        self._held: list[tuple[Label, dict[str, Any]]] = []  # the oldest first
        self.met: Label = (-1, 0)  # when all workers last met,
        self.done: dict[int, Done] = {}  # and what each of them had done by then

    @property
    def labels(self) -> list[Label]:
        return [label for label, _ in self._held]

    def take(self, label: Label, parts: Parts) -> None:
        buffer = self._held.pop(0)[1] if len(self._held) > 1 else {}
        state = {"common": common_state(parts), "own": own_state(parts)}
        self._held.append((label, copied(state, buffer)))

    def get(self, label: Label) -> dict[str, Any]:
        return dict(self._held)[label]


def cloned(value: Any) -> Any:
    """A copy that shares no memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copied(value, None) if isinstance(value, (dict, list)) else copy.deepcopy(value)
