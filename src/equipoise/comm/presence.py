"""Every worker of an elastic run publishes that it is alive and where it is, and watches the others.

A thread does both. A worker that hangs does not end a wait of the others by itself; the thread does, by cutting the
connections of its own worker, once another one has been missing for too long or somebody else has given up.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .diagnosis import state_of

INTERVAL = 0.25  # seconds between beats
SILENCE = 5.0  # seconds without a beat after which a worker is given up, once the generation is broken anyway


class Member(NamedTuple):
    """A process that takes part: the worker's number, and where it runs."""

    worker: int
    host: str  # equal for processes that can see each other's numbers
    pid: int
    name: str  # of the host, for people

    @classmethod
    def here(cls, worker: int) -> Member:
        return cls(worker, _host(), os.getpid(), socket.gethostname())


def _host() -> str:
    """Equal for processes that see each other's numbers; empty where those tell nothing."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


class Pulse(NamedTuple):
    pid: int
    beats: int  # -1 once the worker has ended normally
    calls: int  # comm calls begun
    inside: int  # is it in one? 2: it has said that it will be busy for a while
    step: int


class Seen(NamedTuple):
    """The last beat of a worker, since when there is none, and since when it has made no progress outside of calls."""

    beat: Pulse
    silent: float
    still: float


class Presence:
    """That of one worker. The part of a `Heartbeat` that a comm uses, too: `calls`, `step`, `inside`, `store`."""

    def __init__(self, store: Any, member: Member, deadline: float):
        self.store, self.member = store, member
        # A little less, so that a worker is named within the deadline.
        self.patience = deadline - 2 * INTERVAL if deadline > 4 * INTERVAL else 0.5 * deadline
        self.calls = self.inside = self.step = self.busy = 0
        self._beats = 0
        self._others: dict[int, Member] = {}
        self._seen: dict[int, Seen] = {}
        self._waits = (0, 0.0)  # the call that this worker is in, and since when
        self._broken = ""  # the key that says so of this generation
        self._interrupt: Callable[[], None] | None = None
        self.broken = False  # is this generation over?
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._parent = os.getppid()
        self._thread_store = store.clone()
        self.publish()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)
        self._thread.start()

    # -- what a comm calls ---------------------------------------------------------------------------------------------
    def missing(self) -> tuple[int, int, str] | None:
        """Who is at fault is agreed on with the others, when the next roster is."""
        return None

    def close(self) -> None:
        """A comm ends with its generation, the presence of a worker with the run."""

    # -- what the membership calls -------------------------------------------------------------------------------------
    def watch(self, others: list[Member], broken: str, interrupt: Callable[[], None]) -> None:
        """Watch these workers from now on; `interrupt` ends a wait of this one."""
        with self._lock:
            self._others = {m.worker: m for m in others if m.worker != self.member.worker}
            self._seen, self._broken, self._interrupt, self.broken = {}, broken, interrupt, False
            self.calls = self.inside = 0

    def unwatch(self) -> None:
        with self._lock:
            self._interrupt = None

    def gone(self, member: Member, patience: float) -> tuple[str, int] | None:
        """Why a worker will not come back, and its last step; None while there is hope."""
        seen = self._look(member)
        step = seen.beat.step if seen is not None else 0
        told = f"end/{member.worker}/{member.pid}"
        if self.store.check([told]):
            why, last = json.loads(self.store.get(told))
            return why, max(last, step)
        if not self._running(member):
            return "has died", step
        if seen is None or seen.beat.pid != member.pid:
            return "was replaced", step
        if seen.beat.beats < 0:
            return "has left", step
        silent = time.monotonic() - seen.silent
        if silent > min(patience, SILENCE) or silent > self.patience:
            return f"gives no sign of life ({member.name})", step
        return None

    def stuck(self, member: Member) -> tuple[str, int] | None:
        """As `gone`, for a worker that is alive and goes nowhere."""
        seen = self._look(member)
        if seen is not None and not seen.beat.inside and time.monotonic() - seen.still > self.patience:
            return "hangs outside of communication", seen.beat.step
        return None

    def leave(self) -> None:
        self._stop.set()
        self._thread.join(timeout=4 * INTERVAL)
        self._beats = -2
        try:
            self.publish()
        except Exception:
            return  # the store is gone

    # -- the thread ----------------------------------------------------------------------------------------------------
    def publish(self, store: Any = None) -> None:
        self._beats += 1
        inside = 2 if self.busy else int(self.inside > 0)
        words = (self.member.pid, self._beats, self.calls, inside, self.step)
        (store or self.store).set(f"beat/{self.member.worker}", " ".join(map(str, words)))

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            if os.getppid() != self._parent:
                os._exit(3)  # the launcher is gone, and nothing else would stop this worker
            try:
                self.publish(self._thread_store)
                self._watch()
            except Exception:
                self._give_up()  # the store is gone; the worker that needs it reports that
                return

    def _watch(self) -> None:
        with self._lock:
            others, broken, watching = list(self._others.values()), self._broken, self._interrupt is not None
            if self.inside == 0 or self.calls != self._waits[0]:
                self._waits = self.calls, time.monotonic()
            waits = time.monotonic() - self._waits[1]
        if not watching:
            return
        over = self._thread_store.check([broken])
        for member in others:
            seen = self._look(member, self._thread_store)
            now = time.monotonic()
            if seen is None:
                continue
            silent = now - seen.silent > self.patience or seen.beat.pid != member.pid or not self._running(member)
            still = not seen.beat.inside and now - seen.still > self.patience and waits > self.patience
            over = over or silent or still
        if over:
            self._give_up(broken)

    def _give_up(self, broken: str | None = None) -> None:
        """End the generation for this worker."""
        with self._lock:
            interrupt = self._interrupt if broken is None or broken == self._broken else None
            if interrupt is not None:
                self.broken = True
                interrupt()

    def _look(self, member: Member, store: Any = None) -> Seen | None:
        """Read the last beat of a worker."""
        store, key = store or self.store, f"beat/{member.worker}"
        if not store.check([key]):
            return None
        beat, now = Pulse(*map(int, store.get(key).split())), time.monotonic()
        before = self._seen.get(member.worker)
        silent = still = now
        if before is not None and before.beat.pid == beat.pid:
            silent = before.silent if before.beat.beats == beat.beats else now
            # A call may be long where it waits for somebody who hangs: who is in one does not stand still outside.
            progress = (before.beat.calls, before.beat.step) != (beat.calls, beat.step) or beat.inside
            still = now if progress else before.still
        self._seen[member.worker] = seen = Seen(beat, silent, still)
        return seen

    def _running(self, member: Member) -> bool:
        """Is the process there? Of another host nothing is known."""
        return not member.host or member.host != self.member.host or state_of(member.pid) != "gone"
