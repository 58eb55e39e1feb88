"""From one generation to the next: the workers that are left go back to the newest point that all of them have reached,
newcomers receive what they need from one of them, and the rest of the epoch is redistributed.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ..comm.base import Comm
from ..comm.membership import Lost, Membership
from ..core.copied import copied
from ..core.random import seed_worker
from ..core.vector import digest
from .data_position import converted
from .snapshot import Done, Label, Parts, Snapshots, load_common, load_own

if TYPE_CHECKING:
    from .step import Step


class Point(NamedTuple):
    """Where a generation begins: a snapshot, and who has it, by rank."""

    label: Label
    holders: list[int]


class Known(NamedTuple):
    """What a worker says when a generation begins: its snapshots, when all last met, and what each had done."""

    labels: list[Label]
    met: Label
    done: dict[int, Done]


class Spent(NamedTuple):
    """What a worker had done when its generation ended. Work is taken back, time is not."""

    step: int
    samples: int
    bytes: int
    clock: dict[str, float]
    ledger: dict[str, float]

    @classmethod
    def of(cls, step: Step) -> Spent:
        clock, ledger = step.clock, step.comm.ledger
        seconds = {name: getattr(clock, name) for name in ("seconds", "busy")}
        times = {k: v for k, v in ledger.state_dict().items() if k not in ("messages", "bytes")}
        return cls(clock.step, clock.samples, ledger.bytes, seconds, times)

    def go_on(self, step: Step) -> dict[str, int]:
        """Let the time count that was spent; what is dropped of the work."""
        clock, ledger = step.clock, step.comm.ledger
        clock.load_state_dict(self.clock)
        ledger.load_state_dict(self.ledger)
        return {
            "steps": self.step - clock.step,
            "samples": self.samples - clock.samples,
            "bytes": self.bytes - ledger.bytes,
        }


class Transition:
    """One change of membership, as one worker lives through it."""

    def __init__(self, membership: Membership):
        self.membership = membership
        self.began: float | None = None
        self.reason = "join"
        self.lost: list[Lost] = []  # also in generations that broke before they had begun
        self._done: dict[int, Done] = {}  # what each worker had done, as far as the others know

    def begin(self, reason: str) -> None:
        """The last generation is over."""
        if self.began is None:
            self.began, self.reason = time.perf_counter(), reason

    def agree(self, comm: Comm, snapshots: Snapshots) -> Point | None:
        """The newest snapshot from which all workers had met, those too that are lost; None where there is none.

        A later one would count work of a lost worker that nobody has.
        """
        self.lost += self.membership.roster.lost
        known: list[Known] = comm.gather_objects(Known(snapshots.labels, snapshots.met, snapshots.done))
        newest = max(known, key=lambda row: row.met)
        self._done = newest.done
        met = {label for row in known for label in row.labels if label <= newest.met}
        if not met:
            return None
        holders = {label: [rank for rank, row in enumerate(known) if label in row.labels] for label in met}
        label = max(holders, key=lambda label: (len(holders[label]), label))
        return Point(label, holders[label])

    def hand_over(
        self, parts: Parts, spent: Spent | None, snapshots: Snapshots, point: Point, seed: int
    ) -> dict[str, Any]:
        """Put every worker where the new generation begins; all call it together. What happened, for the events."""
        step, holders = parts.step, point.holders
        comm, roster = step.comm, self.membership.roster
        holds = comm.rank in holders
        dropped = {"steps": 0, "samples": 0, "bytes": 0}
        state: dict[str, Any] = {}
        if holds:
            assert spent is not None
            snapshot = snapshots.get(point.label)
            state = snapshot["common"]
            load_common(parts, state)
            load_own(parts, snapshot["own"], state["kind"])
            dropped = spent.go_on(step)
        sent = comm.ledger.bytes
        receivers = [rank for rank in range(comm.size) if rank not in holders]
        if receivers:
            received = _transfer(comm, holders[0], receivers, state)
            if not holds:
                state = received
                load_common(parts, state)
                step.clock.samples, step.clock.busy = 0, 0.0
                seed_worker(seed + 7919 * step.clock.step, comm.worker)
        _make_models_fit(parts, holders)
        if parts.position is not None:
            parts.position.deal(state["position"])
        step.guard.keep_buffers()
        parts.plain.update(state["plain"])
        seconds = time.perf_counter() - self.began if self.began is not None and holds else 0.0
        mine = (self.reason, self.lost, seconds, comm.ledger.bytes - sent, dropped, step.clock.samples)
        rows = comm.gather_objects(mine)
        reason, lost, *_ = rows[holders[0]]
        happened = {
            "generation": roster.generation,
            "step": step.clock.step,
            "members": list(roster.members),
            "joined": [roster.members[rank] for rank in receivers],
            "lost": [row._asdict() | {"text": str(row)} for row in lost],
            "reason": reason,
            "transition_seconds": round(max(row[2] for row in rows), 6),
            "given_bytes": sum(row[3] for row in rows),
            "dropped": {
                "steps": max(row[4]["steps"] for row in rows),
                "samples": sum(row[4]["samples"] for row in rows),
                "bytes": sum(row[4]["bytes"] for row in rows),
            },
        }
        parts.plain["history"] = [*parts.plain["history"], happened]
        gone = [self._done.get(row.worker, Done()) for row in lost]
        departed = Done(*map(sum, zip(parts.plain["departed"], *gone, strict=True)))
        if parts.position is not None:  # exactly: what all have taken, and those who are here have not
            departed = departed._replace(samples=step.clock.consumed - sum(row[5] for row in rows))
        parts.plain["departed"] = departed
        return happened


def _transfer(comm: Comm, source: int, receivers: list[int], state: dict[str, Any]) -> dict[str, Any]:
    """The source's state, at the receivers."""
    message = torch.empty(0, dtype=torch.uint8)
    if comm.rank == source:
        buffer = io.BytesIO()
        torch.save(_with_tensors(copied(state, None, "cpu")), buffer)
        message = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    length = comm.gather_objects(len(message))[source]
    if comm.rank == source:
        comm.exchange(dict.fromkeys(receivers, message), {}).wait()
    elif comm.rank in receivers:
        message = torch.empty(length, dtype=torch.uint8)
        comm.exchange({}, {source: message}).wait()
        received: dict[str, Any] = torch.load(io.BytesIO(message.numpy().tobytes()), weights_only=False)
        return _with_rows(received, torch.Tensor, torch.Tensor.numpy)
    return {}


def _with_tensors(state: dict[str, Any]) -> dict[str, Any]:
    """Arrays as tensors, which are written without a copy of each number."""

    def tensor(row: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(row))

    return _with_rows(state, np.ndarray, tensor)


def _with_rows(state: dict[str, Any], kind: type, convert: Callable[[Any], Any]) -> dict[str, Any]:
    """The state with what is left of the epoch converted, where the loop has a position."""
    position = state["position"]
    return state if position is None else state | {"position": converted(position, kind, convert)}


def _make_models_fit(parts: Parts, holders: list[int]) -> None:
    """A newcomer's model: that of the others where they have the same, bit for bit; their mean where they differ.

    With their mean, the mean of all workers stays where it was. Through a wire, replicas begin with that model too.
    """
    step, comm = parts.step, parts.step.comm
    holds, newcomers = comm.rank in holders, len(holders) < comm.size
    if not (newcomers or step.compressed):
        return
    x = step.flat.gather()
    model = x.clone()
    digests = comm.gather_objects(digest(x))
    if len({digests[rank] for rank in holders}) > 1:
        shares = step.sync.mean_shares() or [1.0] * comm.size
        model = comm.sum(model.mul_(shares[comm.rank] / sum(shares[rank] for rank in holders) if holds else 0.0))
    if not holds:
        x.copy_(model)
        step.flat.scatter()
    if step.compressed:
        step.wire.initial = model
