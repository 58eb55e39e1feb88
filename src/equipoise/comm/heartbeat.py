"""Heartbeats: every worker publishes its position in a store, so that a failed collective can name the missing worker.

Without them, the error of a failed collective points at the worker that noticed. A worker whose heartbeats stopped has
died; the one with the fewest comm calls hangs in its own code.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any, NamedTuple

INTERVAL = 0.5  # seconds between beats


class Beat(NamedTuple):
    beats: int  # negative once the worker has ended normally
    calls: int  # comm calls begun
    step: int


class Heartbeat:
    """Publishes this worker's position from a background thread, and reads those of all workers."""

    def __init__(self, store: Any, rank: int, size: int):
        self.store, self.rank, self.size = store, rank, size
        self.calls = self.inside = 0  # comm calls begun; those that it is in
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
                os._exit(3)  # the launcher is gone, and nothing else would stop this worker
            try:
                self.publish()
            except Exception:
                return  # the store is gone; the worker that needs it reports that

    def read(self) -> list[Beat | None]:
        """The last heartbeat of each rank; None for a worker that never joined."""
        beats: list[Beat | None] = []
        for rank in range(self.size):
            key = f"equipoise/beat/{rank}"
            beats.append(Beat(*map(int, self.store.get(key).split())) if self.store.check([key]) else None)
        return beats

    def missing(self) -> tuple[int, int, str] | None:
        """The worker that the others wait for: its rank, its last known step, and its status in words."""
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
        with contextlib.suppress(Exception):  # the store may be gone
            self._beats = -2
            self.publish()
