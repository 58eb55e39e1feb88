"""Who is alive and where: every worker tells a shared store, and a stranded worker reads who is missing.

A collective that fails blames whoever noticed. The heartbeat lets the one who noticed name the one who is missing: a
worker whose beats stopped has died, the one with the fewest finished calls hangs in its own code.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any, NamedTuple

INTERVAL = 0.5  # seconds between beats


class Beat(NamedTuple):
    beats: int  # negative once the worker has left as it should
    calls: int  # comm calls begun
    step: int


class Heartbeat:
    """Publishes this worker's position from a thread of its own, and reads everybody's."""

    def __init__(self, store: Any, rank: int, size: int):
        self.store, self.rank, self.size = store, rank, size
        self.calls = 0
        self.step = 0
        self._beats = 0
        self._stop = threading.Event()
        self._parent = os.getppid()
        self.publish()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def publish(self) -> None:
        self._beats += 1
        self.store.set(f"equipoise/beat/{self.rank}", f"{self._beats} {self.calls} {self.step}")

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            if os.getppid() != self._parent:
                os._exit(3)  # the launcher is gone: nobody could stop this worker any more
            try:
                self.publish()
            except Exception:
                return  # the store left first; whoever waits for it reports that

    def read(self) -> list[Beat | None]:
        """Everybody's last beat; None for a worker that never came."""
        beats: list[Beat | None] = []
        for rank in range(self.size):
            key = f"equipoise/beat/{rank}"
            known = self.store.check([key])
            beats.append(Beat(*map(int, self.store.get(key).split())) if known else None)
        return beats

    def missing(self) -> tuple[int, int, str] | None:
        """The worker that holds the others up: its rank, its last known step, and whether it died or hangs."""
        try:
            self.publish()
            first = self.read()
            time.sleep(3 * INTERVAL)
            second = self.read()
        except Exception:
            return None
        for rank, (a, b) in enumerate(zip(first, second, strict=True)):
            if b is None:
                return rank, 0, "never joined"
            if rank != self.rank and a is not None and a.beats == b.beats >= 0:
                return rank, b.step, "has died"
        present = [(b.calls, rank, b.step) for rank, b in enumerate(second) if b is not None and b.beats >= 0]
        calls, rank, step = min(present)
        if rank != self.rank and calls < self.calls:
            return rank, step, "hangs outside of communication"
        left = [(rank, b.step) for rank, b in enumerate(second) if b is not None and b.beats < 0]
        return (*left[0], "has ended already") if left else None

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2 * INTERVAL)
        with contextlib.suppress(Exception):  # the store may have left first
            self._beats = -2
            self.publish()
