"""Where the workers of an elastic run agree: this round is done, nobody is missing, and who waits is let in."""

from __future__ import annotations

from typing import Any

import torch

from ..comm.membership import Membership
from ..core.errors import Left
from ..core.stop import Stop
from .snapshot import Done, Parts, Snapshots


class MembersChange(Exception):
    """All workers have agreed to let others in, or to let some go; nothing is lost."""


class Agreement:
    """One generation's points of agreement, and what they leave."""

    def __init__(self, membership: Membership, snapshots: Snapshots, leave: Stop | None = None):
        self.membership, self.snapshots, self.leave = membership, snapshots, leave
        self.stopped = 0  # the exit code, where too few workers would be left of those that are asked to leave
        self._round = self._last = 0  # steps of the last round, and of the last agreement

    def begin(self, parts: Parts) -> None:
        """The first agreement of a generation: from here on there is something to go back to."""
        self._round = self._last = parts.step.clock.step
        self._meet(parts)

    def after_step(self, parts: Parts, *, always: bool = False) -> None:
        """Agree if it is time, or `always`; raises `MembersChange` where workers are to be let in or leave."""
        step, clock = parts.step, parts.step.clock
        rests = clock.step - self._last >= self.membership.elasticity.snapshot_every
        due = rests if not step.talks else False
        if clock.due:
            # Without lockstep each worker has its own number of steps, and rounds are all that they share.
            due = clock.step - self._round > 1 or rests or not step.lockstep
            self._round = clock.step
        if due or always:
            self._last = clock.step
            newcomers, leaving = self._meet(parts)
            if leaving and len(self.membership.roster.members) - len(leaving) < self.membership.elasticity.least:
                self.stopped = Left.code
            elif self.membership.worker in leaving:
                raise Left(f"worker {self.membership.worker} has left the run at step {clock.step}, as it was asked to")
            elif newcomers or leaving:
                raise MembersChange

    def _meet(self, parts: Parts) -> tuple[bool, list[int]]:
        """Keep a snapshot, and wait for all others to have theirs. Do newcomers wait, and who is to leave?"""
        comm, clock, members = parts.step.comm, parts.step.clock, self.membership.roster.members
        label = self.membership.roster.generation, clock.step if parts.step.lockstep else clock.rounds
        if parts.position is not None:
            if not parts.step.lockstep:
                clock.consumed = self._samples_of_all(parts)
            parts.position.confirm(parts.at if parts.step.lockstep else None)
        self.snapshots.take(label, parts)
        newcomers = self.membership.newcomers() if comm.rank == 0 else 0
        leaves = self.leave is not None and self.leave.is_set()
        row: list[Any] = [newcomers, leaves, clock.samples, comm.ledger.messages, comm.ledger.bytes]
        with comm.uncounted():
            rows = comm.gather(torch.tensor(row, dtype=torch.float64)).tolist()
        self.snapshots.met = label
        self.snapshots.done = {worker: Done(*map(int, row[2:])) for worker, row in zip(members, rows, strict=True)}
        self.membership.agreed()
        return bool(rows[0][0]), [worker for worker, row in zip(members, rows, strict=True) if row[1]]

    def _samples_of_all(self, parts: Parts) -> int:
        """What all workers have taken, those too that are here no longer."""
        comm, own = parts.step.comm, torch.tensor(parts.step.clock.samples, dtype=torch.float64)
        departed: Done = parts.plain["departed"]
        with comm.uncounted():
            return int(comm.gather(own).sum()) + departed.samples
