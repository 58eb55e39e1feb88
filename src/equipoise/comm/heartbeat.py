"""Heartbeats: every worker publishes its position in a store, so that a failed call can name the missing worker.

`diagnosis` reads them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

INTERVAL = 0.5  # seconds between beats


class Beat(NamedTuple):
    """The last position that a worker has published."""

    beats: int
    calls: int  # comm calls begun
    inside: int  # zero while it is in none
    step: int
    ending: str  # empty while it runs, then how it ended


class Heartbeat:
    """Publishes this worker's position from a background thread, and reads those of all workers.

    The thread is no daemon: Python waits for it before it takes the interpreter down. A thread that comes back from a
    call of the store after that would abort the process.
    """

    def __init__(self, store: Any, rank: int, size: int):
        self.store, self.rank, self.size = store, rank, size
        self.calls = self.inside = self.step = self.beats = 0  # inside: comm calls that it is in
        self.ending = ""
        self._stop = threading.Event()
        self._parent = os.getppid()
        store.set(f"equipoise/process/{rank}", f"{os.getpid()} {machine()}")
        self.publish()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=False)
        self._thread.start()
        _when_the_program_ends(self._stop.set)

    def publish(self) -> None:
        self.beats += 1
        beat = Beat(self.beats, self.calls, self.inside, self.step, self.ending)
        self.store.set(f"equipoise/beat/{self.rank}", " ".join(map(str, beat)))

    def _run(self) -> None:
        main = threading.main_thread()
        while not self._stop.wait(INTERVAL) and main.is_alive():
            if os.getppid() != self._parent:
                os._exit(3)  # the launcher is gone, and nothing else would stop this worker
            with contextlib.suppress(Exception):  # gone, or on a full disk for a moment: who needs the store reports it
                self.publish()
        self.ending = self.ending or "has ended already"
        with contextlib.suppress(Exception):
            self.publish()

    def read(self) -> list[Beat | None]:
        """The last heartbeat of each rank; None for a worker that never joined."""
        beats: list[Beat | None] = []
        for rank in range(self.size):
            text = self._get(f"equipoise/beat/{rank}")
            if text is None:
                beats.append(None)
                continue
            count, calls, inside, step, ending = text.split(" ", 4)
            beats.append(Beat(int(count), int(calls), int(inside), int(step), ending))
        return beats

    def local_processes(self) -> dict[int, int]:
        """By rank, the process ids of the workers that run on this machine."""
        texts = {rank: self._get(f"equipoise/process/{rank}") for rank in range(self.size)}
        rows = {rank: text.split(" ", 1) for rank, text in texts.items() if text is not None}
        here = machine()
        return {rank: int(pid) for rank, (pid, where) in rows.items() if here and where == here}

    def settled(self) -> str | None:
        """What the first worker that looked for a missing one has found."""
        return self._get("equipoise/verdict")

    def settle(self, verdict: str) -> str:
        """Let all workers find the same: this, unless another worker has found something before."""
        if self.store.add("equipoise/verdicts", 1) == 1:
            self.store.set("equipoise/verdict", verdict)
            return verdict
        for _ in range(20):
            if (settled := self.settled()) is not None:
                return settled
            self._stop.wait(INTERVAL / 10)
        return verdict

    def _get(self, key: str) -> str | None:
        return self.store.get(key).decode() if self.store.check([key]) else None

    def end(self, word: str) -> None:
        """Publish how this worker ends, at once: the next the others see of it is a closed connection."""
        if not self.ending:
            self.ending = word
            with contextlib.suppress(Exception):  # the store may be gone
                self.publish()

    def close(self) -> None:
        """Publish that this worker has ended, and end the thread."""
        self._stop.set()
        self._thread.join(timeout=10.0)  # a store that does not answer must not keep the process


def machine() -> str:
    """Equal for processes that see each other's process ids; empty where that cannot be known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _when_the_program_ends(call: Any) -> None:
    """Before Python waits for its threads; without this function of `threading` they end up to a beat later."""
    register, process = getattr(threading, "_register_atexit", None), os.getpid()
    if register is not None:
        # A forked process, such as that of a DataLoader, has no such thread.
        register(lambda: call() if os.getpid() == process else None)
