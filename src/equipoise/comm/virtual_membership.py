"""The membership of virtual workers: deterministic, with changes at planned points.

A planned loss takes effect when the worker has computed the gradient of a step, or the first one that ends after a
simulated second; a failure of a described cluster, in the gradient in which it strikes, and the worker returns when it
is repaired. From then on every comm call of its generation raises `PeerLost`, also the one in which another worker
waits. A planned newcomer is let in at the first agreement after its step or second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..core.errors import LeftOut, PeerLost, Refused
from ..simulate.cluster import Cluster
from ..simulate.spells import Spell
from .base import Comm
from .membership import Elasticity, Lost, Membership, Roster
from .scheduler import Abort, Scheduler, VirtualWorker
from .virtual import VirtualComm, World


class Change(NamedTuple):
    """What befalls a worker, at a step of the loop or at a simulated second."""

    worker: int
    kind: str  # "lose" or "join"; a worker that was lost may join again
    step: int | None = None
    seconds: float | None = None
    why: str = "was killed"

    def due(self, step: int, now: float) -> bool:
        return step >= self.step if self.step is not None else now >= (self.seconds or 0.0)


class VirtualMembers:
    """What all virtual workers know of each other: the roster, who is lost, who waits, and what is planned."""

    def __init__(
        self,
        workers: int,
        elasticity: Elasticity,
        changes: Iterable[Change] = (),
        cluster: Cluster | None = None,
        notice: float = 0.0,
    ):
        self.elasticity, self.cluster, self.notice = elasticity, cluster, notice
        self.scheduler = Scheduler(workers, cluster is not None and cluster.described)
        self.changes = list(changes)  # still to come
        self.roster = Roster(0, tuple(range(workers)))
        self.world = self._world([*self.scheduler.workers])
        self.lost: dict[int, Lost] = {}  # since the present roster was agreed on
        self.waiting: dict[int, VirtualWorker] = {}  # to be let in
        self.arrived: dict[int, VirtualWorker] = {}  # where the next roster is agreed on
        self.closed = False  # does one of them want nobody to be let in?
        self.begun = False
        self.agreed_on = ""  # what the workers of the first generation have published
        for change in self.changes:
            if change.kind == "join":
                self.scheduler.add(change.worker, change.seconds or 0.0)

    def run(self, function: Callable[[Comm], Any], *, threads: int = 1) -> dict[int, Any]:
        """`function(comm)` on every worker; the results of those that came to the end, by worker."""
        results: dict[int, Any] = {}

        def work(worker: VirtualWorker) -> None:
            membership = VirtualMembership(self, worker)
            try:
                results[worker.id] = function(membership.comm)
            except Refused:
                return
            except LeftOut:
                if not results:
                    raise

        self.scheduler.run(work, threads=threads)
        return dict(sorted(results.items()))

    def _world(self, workers: list[VirtualWorker]) -> World:
        ids = [worker.id for worker in workers]
        cluster = None if self.cluster is None else self.cluster.of(ids)
        return World(len(workers), cluster, self.scheduler, workers)

    def lose(self, worker: VirtualWorker, why: str) -> None:
        """Declare a worker dead; the others see it in their next comm call, or in the one that they are in."""
        worker.lost = True
        self.arrived.pop(worker.id, None)
        if worker not in self.world.workers:  # it was not let in yet
            self.waiting.pop(worker.id, None)
            self.scheduler.interrupt(worker)
            return
        lost = Lost(worker.id, why, worker.step, self.world.workers.index(worker))
        self.lost[worker.id] = lost
        self.world.broken = self.world.broken or PeerLost(str(lost), worker.id, worker.step)
        self.world.noticed = worker.now + self.notice
        for other in self.world.workers:
            if other.id not in self.arrived:
                self.scheduler.interrupt(other)
        self.decide()

    def decide(self, caller: VirtualWorker | None = None) -> None:
        """Agree on the next roster, once every member that is alive has arrived: they, and who waits, in order."""
        present = [w for w in self.world.workers if not (w.lost or w.done)]
        if not present or any(w.id not in self.arrived for w in present):
            return
        free = self.elasticity.most - len(present)
        step, now = max(w.step for w in present), max(w.now for w in present)
        new = [w for id, w in self.waiting.items() if self.may_enter(id, step, now)][: max(free, 0)]
        if self.closed:
            new = []
        workers = sorted((*present, *new), key=lambda w: w.id)
        self.roster = Roster(
            self.roster.generation + 1,
            tuple(w.id for w in workers),
            tuple(sorted(w.id for w in new)),
            tuple(self.lost[id] for id in sorted(self.lost)),
        )
        self.world = self._world(workers)
        self.lost, self.arrived, self.closed = {}, {}, False
        for w in new:
            del self.waiting[w.id]
            self.changes = [c for c in self.changes if (c.kind, c.worker) != ("join", w.id)]
        for w in workers:
            w.wait_until(now, now)
            w.enters = False
            if w is caller:
                w.ready = True
            else:
                self.scheduler.wake(w)

    def may_enter(self, id: int, step: int, now: float) -> bool:
        return all(c.due(step, now) for c in self.changes if (c.kind, c.worker) == ("join", id))


class VirtualMembership(Membership):
    """One virtual worker's view."""

    def __init__(self, members: VirtualMembers, worker: VirtualWorker):
        super().__init__(worker.id, members.elasticity)
        self._members, self._worker = members, worker
        if worker in members.world.workers:
            self.comm = self._take_part()
        else:
            alone = members.cluster.of([worker.id]) if members.cluster is not None else None
            self.comm = VirtualComm(World(1, alone, members.scheduler, [worker]), worker)
            self.comm.membership = self

    def _take_part(self) -> VirtualComm:
        members = self._members
        self.roster, self.comm = members.roster, VirtualComm(members.world, self._worker)
        self.comm.membership, self.comm.after_compute, self.comm.leave = self, self._meet_fate, self._leave
        return self.comm

    def _leave(self, failure: Spell) -> None:
        """A failure of the described cluster: this worker is lost, and comes back as a newcomer once it is repaired."""
        members, me = self._members, self._worker
        me.step = self.comm.step
        members.lose(me, "failed")
        if math.isfinite(failure.end):
            members.scheduler.add(me.id, max(failure.end, me.now))
        raise Abort

    def _meet_fate(self) -> None:
        for change in self._members.changes:
            if (change.kind, change.worker) == ("lose", self.worker) and change.due(self.comm.step, self._worker.now):
                self._members.changes.remove(change)
                self._worker.step = self.comm.step
                self._members.lose(self._worker, change.why)
                raise Abort

    @property
    def begun(self) -> bool:
        return self._members.begun

    def agreed(self) -> None:
        self._members.begun = True

    def publish(self, recipe: str) -> None:
        self._members.agreed_on = recipe

    def published(self) -> str:
        return self._members.agreed_on

    def newcomers(self) -> int:
        members, me = self._members, self._worker
        return sum(members.may_enter(id, self.comm.step, me.now) for id in members.waiting)

    def reform(self, *, let_in: bool = True) -> Comm:
        members, me = self._members, self._worker
        if me.lost:
            raise Abort
        members.closed = members.closed or not let_in
        me.step, members.arrived[me.id] = self.comm.step, me
        me.ready, me.waits_for = False, "for the others to agree on who is present"
        members.decide(me)
        members.scheduler.switch(me)
        return self._take_part()

    def enter(self) -> Comm:
        members, me = self._members, self._worker
        members.waiting[me.id] = me
        me.ready, me.enters, me.waits_for = False, True, "to be let in"
        members.scheduler.switch(me)
        if me.interrupted:
            raise LeftOut(f"worker {self.worker} was not let in: the run has ended", self.worker)
        return self._take_part()
