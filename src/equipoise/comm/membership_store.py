"""The membership of processes: agreed on in a key-value store that outlives any of them (torch's TCPStore).

    roster/G            the workers of generation G: written once, by compare-and-set, and never changed
    broken/G            somebody has given up on generation G, and so must all others
    present/G/W         worker W has arrived to agree on generation G
    ready/G/W           and knows that it takes part
    beat/W, end/W/PID   signs of life, and how a process ended, as far as its launcher knows
    agreed              the settings and versions of the run, for those who join
    ticket/N            a process that waits to be let in

Every generation has a process group of its own. The lowest worker that has arrived decides on the roster as soon as
every other member has arrived too or is known to be gone; if it dies first, the next one does.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from ..core.device import assumed
from ..core.errors import LeftOut, PeerLost, WorkerError
from . import connections
from .base import Comm
from .membership import Elasticity, Lost, Membership, Roster
from .presence import INTERVAL, Member, Presence
from .process import ProcessComm, join_group

_POLL = 0.02  # seconds between two looks into the store
_TELL = 0.5  # seconds in which the launcher says how a process ended
_AWAY = 60.0  # seconds for which a host may be cut off from the store and come back
_ATTEMPTS = 4  # generations in a row that break before anything is agreed on in them


class StoreMembership(Membership):
    """One process's view. `alone` is the comm of a process that has not been let in yet."""

    def __init__(
        self,
        store: Any,
        worker: int,
        elasticity: Elasticity,
        alone: Comm,
        *,
        timeout: float = 300.0,
        deterministic: bool = False,
        launched: Any = None,
        device: torch.device | None = None,
    ):
        super().__init__(worker, elasticity)
        self.store, self.timeout, self.deterministic = store, timeout, deterministic
        # Where a launcher watches the processes and says how they ended: the memory in which it reads their steps.
        self.launched = launched
        self.device = assumed(device, worker)  # whatever this worker's rank in a generation is
        self.member = Member.here(worker)
        self.comm: Comm = alone
        self.comm.membership = self
        self._members: list[Member] = []
        self._attempts = 0
        self._let_in = True
        self._unsaid: list[Lost] = []  # lost in generations that broke before they had begun
        self._begun = False
        self._settled = 0  # tickets of which none waits any more
        self._sockets: connections.Connections = set()
        store.set_timeout(datetime.timedelta(seconds=timeout))
        self.presence = Presence(store, self.member, elasticity.deadline)
        connections.limit_waits(store, max(elasticity.deadline, _AWAY))

    # -- taking part ---------------------------------------------------------------------------------------------------
    def begin(self, size: int) -> Comm:
        """The first generation: as many workers as were started, whoever they are."""
        self.store.set(f"first/{self.worker}", json.dumps(self.member))
        rows = [self.store.get(f"first/{worker}") for worker in range(size)]  # waits for each
        members = [Member(*json.loads(row)) for row in rows]
        roster = self._decided(0, members, [], [])
        self.store.set_timeout(datetime.timedelta(seconds=max(self.elasticity.deadline, 10.0)))
        return self._join(roster)

    def enter(self) -> Comm:
        ticket = self.store.add("tickets", 1)
        self.store.set(f"ticket/{ticket}", json.dumps(self.member))
        heard = time.monotonic()
        while True:
            roster = self._latest()
            if roster is not None and list(self.member) in roster["members"]:
                return self._join(roster)
            members = [] if roster is None else list(map(_member, roster["members"]))
            if self.store.check(["over"]):
                raise LeftOut(f"worker {self.worker} was not let in: the run has ended", self.worker)
            if not all(self._gone(m) for m in members):
                heard = time.monotonic()
            elif roster is not None and time.monotonic() - heard > 2 * INTERVAL:  # nobody is left to let us in
                self._gather_newcomers(roster, patient=time.monotonic() - heard < self.elasticity.deadline)
            time.sleep(_POLL)

    def _gather_newcomers(self, roster: dict[str, Any], patient: bool) -> None:
        """All members are lost: those who wait go on among themselves, once they are enough."""
        waiting = self._waiting(self.store.add("tickets", 0))
        if waiting[:1] == [self.member] and (len(waiting) >= self.elasticity.least or not patient):
            lost = [Lost(m.worker, *(self._gone(m) or ("has died", 0))) for m in map(_member, roster["members"])]
            self._decided(roster["generation"] + 1, [], waiting[: self.elasticity.most], lost)

    def newcomers(self) -> int:
        total = self.store.add("tickets", 0)
        if total == self._settled:
            return 0
        waiting = self._waiting(total)
        if all(self.store.check([f"used/{ticket}"]) for ticket in range(self._settled + 1, total + 1)):
            self._settled = total
        return max(0, min(len(waiting), self.elasticity.most - len(self._members)))

    def reform(self, *, let_in: bool = True) -> Comm:
        self._let_in = let_in
        try:
            self._end_generation()
            roster = self._agree(self.roster.generation + 1, let_in)
            if list(self.member) not in roster["members"]:
                return self.enter()  # the others have gone on without this one
            return self._join(roster)
        except (dist.DistError, RuntimeError) as error:
            if isinstance(error, WorkerError):
                raise
            raise WorkerError(
                f"worker {self.worker} cannot reach the store of the run any more: the process or the host that holds "
                f"it is gone ({str(error).splitlines()[0]})",
                self.worker,
            ) from error

    @property
    def begun(self) -> bool:
        return bool(self.store.check(["begun"]))

    def agreed(self) -> None:
        self._attempts = 0
        if not self._begun and self.comm.rank == 0:
            self.store.set("begun", "1")
        self._begun = True

    def publish(self, recipe: str) -> None:
        self.store.set("agreed", recipe)

    def published(self) -> str:
        return self.store.get("agreed").decode() if self.store.check(["agreed"]) else ""

    def close(self, *, over: bool = False) -> None:
        """Leave. `over`: the run has come to its end, and nobody will be let in any more."""
        with contextlib.suppress(Exception):
            if over:
                self.store.set("over", "1")
        self.presence.leave()
        self._close_group()

    def refuse(self, message: str) -> None:
        """End the run for all workers: what happened to this one would happen to the others too."""
        with contextlib.suppress(Exception):
            self.store.set("refused", message)

    # -- one generation ------------------------------------------------------------------------------------------------
    def _end_generation(self) -> None:
        self.presence.unwatch()
        self.store.set(f"broken/{self.roster.generation}", str(self.worker))
        self._close_group()

    def _close_group(self) -> None:
        connections.cut(self._sockets)
        self._sockets = set()
        with contextlib.suppress(Exception):
            if dist.is_initialized():
                dist.destroy_process_group()
            # Groups are known by their number, which a group that failed to form has used up here and nowhere else.
            dist.distributed_c10d._world.group_count = 0

    def _join(self, roster: dict[str, Any]) -> Comm:
        """The comm of this roster, or of the next one if this one breaks before it has begun."""
        before = self._members
        try:
            comm = self._take_part(roster)
        except PeerLost:
            # Others may be lost again and again; the same ones that never meet cannot reach each other.
            self._attempts = self._attempts + 1 if before == self._members else 0
            if self._attempts >= _ATTEMPTS:
                raise
            self._unsaid += self.roster.lost
            return self.reform(let_in=self._let_in)
        self._unsaid = []
        return comm

    def _take_part(self, roster: dict[str, Any]) -> Comm:
        """Join the group of this roster; `PeerLost` if another one in it does not."""
        number, members = roster["generation"], list(map(_member, roster["members"]))
        self.roster = Roster(
            number,
            tuple(m.worker for m in members),
            tuple(roster["joined"]),
            tuple(Lost(*row) for row in roster["lost"]),
        )
        self._members = members
        self._await_ready(number, members)
        before = connections.open_sockets()
        self.presence.watch(members, f"broken/{number}", lambda: self._interrupt(before))
        rank, size = self.roster.members.index(self.worker), len(members)
        limit = min(self.timeout, max(self.elasticity.deadline, 10.0))
        try:
            # A connection of its own, which can be cut too.
            join_group(PrefixStore(f"group/{number}", self.store.clone()), rank, size, limit, self.device)
        except (dist.DistError, RuntimeError) as error:
            raise PeerLost(f"worker {self.worker} cannot reach the others: {str(error).splitlines()[0]}") from error
        self._sockets = connections.open_sockets() - before
        if connections.possible():
            dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=self.timeout))
        self.comm = ProcessComm(
            timeout=self.timeout,
            deterministic=self.deterministic,
            presence=self.presence,
            steps=self.launched,
        )
        self.comm.membership = self
        return self.comm

    def _interrupt(self, before: connections.Connections) -> None:
        """End a wait of this worker for others."""
        connections.cut(self._sockets or connections.open_sockets() - before)

    def _await_ready(self, number: int, members: list[Member]) -> None:
        """Return when all members know of this roster."""
        self.store.set(f"ready/{number}/{self.worker}", "1")
        limit = time.monotonic() + self.elasticity.deadline
        late = list(members)
        while late:
            late = [m for m in late if not self.store.check([f"ready/{number}/{m.worker}"])]
            lost = [m for m in late if self._gone(m)]
            if lost or self.store.check([f"broken/{number}"]) or time.monotonic() > limit:
                who = lost[0].worker if lost else late[0].worker if late else None
                raise PeerLost(f"worker {who} did not arrive in generation {number}", who)
            if late:
                time.sleep(_POLL)

    # -- agreeing ------------------------------------------------------------------------------------------------------
    def _agree(self, number: int, let_in: bool) -> dict[str, Any]:
        """The roster of the next generation."""
        self.store.set(f"present/{number}/{self.worker}", "open" if let_in else "closed")
        limit = time.monotonic() + self.elasticity.deadline
        lost: dict[int, tuple[str, int]] = {}
        while True:
            if self.store.check(["refused"]):
                raise WorkerError(self.store.get("refused").decode(), self.worker)
            if self.store.check([f"roster/{number}"]):
                return self._read(number)
            here, late = [], []
            for member in self._members:
                if (reason := self._gone(member)) is not None:
                    lost[member.worker] = reason
                elif self.store.check([f"present/{number}/{member.worker}"]):
                    here.append(member)
                elif (reason := self.presence.stuck(member)) is not None:
                    lost[member.worker] = reason
                else:
                    late.append(member)
            patient = time.monotonic() < limit
            if not patient:
                lost |= {m.worker: ("does not answer", 0) for m in late}
            opened = all(self.store.get(f"present/{number}/{m.worker}") == b"open" for m in here)
            new = self._waiting(self.store.add("tickets", 0)) if opened else []
            enough = len(here) + len(new) >= self.elasticity.least
            settled = (not late and enough) or not patient
            if settled and min(here).worker == self.worker:
                room = max(0, self.elasticity.most - len(here))
                return self._decided(number, here, new[:room], self._explained(lost))
            time.sleep(_POLL)

    def _decided(self, number: int, here: list[Member], new: list[Member], lost: list[Lost]) -> dict[str, Any]:
        """Write the roster, unless another worker was faster; what stands in the store is the roster."""
        roster = {
            "generation": number,
            "members": sorted((*here, *new)),
            "joined": sorted(m.worker for m in new),
            "lost": lost,
        }
        self.store.compare_set(f"roster/{number}", "", json.dumps(roster))
        if number == 0 or int(self.store.get("generation")) < number:
            self.store.set("generation", str(number))
        return self._read(number)

    def _explained(self, lost: dict[int, tuple[str, int]]) -> list[Lost]:
        """Who is lost, and why; the launcher knows more about the end of a process than that it ended."""
        limit = time.monotonic() + (_TELL if self.launched is not None else 0.0)
        local = len({m.name for m in self._members}) == 1
        rows = list(self._unsaid)
        for rank, member in enumerate(self._members):
            if member.worker not in lost:
                continue
            why, step = lost[member.worker]
            while why == "has died" and time.monotonic() < limit:
                why, step = self.presence.gone(member, 0.0) or (why, step)
                time.sleep(_POLL)
            rows.append(Lost(member.worker, why, step, rank, "" if local else member.name))
        return rows

    def _gone(self, member: Member) -> tuple[str, int] | None:
        return None if member == self.member else self.presence.gone(member, self.presence.patience)

    def _waiting(self, total: int) -> list[Member]:
        """The processes that wait to be let in, in the order in which they came."""
        waiting = []
        for ticket in range(1, total + 1):
            if self.store.check([f"ticket/{ticket}"]) and not self.store.check([f"used/{ticket}"]):
                member = Member(*json.loads(self.store.get(f"ticket/{ticket}")))
                if member in self._members or self._gone(member):
                    self.store.set(f"used/{ticket}", "1")
                else:
                    waiting.append(member)
        return waiting

    def _latest(self) -> dict[str, Any] | None:
        return self._read(int(self.store.get("generation"))) if self.store.check(["generation"]) else None

    def _read(self, number: int) -> dict[str, Any]:
        roster: dict[str, Any] = json.loads(self.store.get(f"roster/{number}"))
        return roster


def _member(row: list[Any]) -> Member:
    return Member(*row)
