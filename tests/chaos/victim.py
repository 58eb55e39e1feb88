"""Processes that faults are done to: forked, in a group of their own, watched from outside."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.core.errors import verdict

_patience = 1.0


def set_patience(factor: float) -> None:
    """All limits of time are so many times longer: for a machine that is busy with other things."""
    global _patience
    _patience = factor


def patient(seconds: float) -> float:
    return _patience * seconds


class Outcome(NamedTuple):
    """How a victim ended."""

    code: int | None  # its exit code, negative for a signal; None if it did not end in time
    line: str  # the first line of its error
    value: Any
    seconds: float


class Victim:
    """A function in a forked process, which leads a process group. Errors end it as they end the command."""

    def __init__(self, function: Callable[[], Any], said: Path | None = None):
        sys.stdout.flush()
        sys.stderr.flush()
        self._began = time.monotonic()
        self._pipe, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            out = os.open(said if said is not None else os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.stdout, sys.stderr = (os.fdopen(fd, "w", 1, closefd=False) for fd in (1, 2))  # pytest has its own
            code, line, value = 0, "", None
            try:
                value = function()
            except BaseException as error:
                code, line, trace = verdict(error)
                os.write(2, f"{line}\n{trace}\n".encode())
            data = pickle.dumps((code, line, value))
            while data:
                data = data[os.write(theirs, data) :]
            os._exit(code)
        os.close(theirs)
        self.outcome: Outcome | None = None

    def ended(self) -> bool:
        return self.outcome is not None or bool(os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))

    def wait(self, seconds: float) -> Outcome:
        """How it ended. One that does not end in time is killed, with its group."""
        if self.outcome is not None:
            return self.outcome
        data, deadline = b"", time.monotonic() + patient(seconds)
        while True:
            left = max(0.0, deadline - time.monotonic())
            if select.select([self._pipe], [], [], min(left, 0.2))[0]:
                chunk = os.read(self._pipe, 1 << 16)
                if not chunk:
                    break
                data += chunk
            elif self.ended() or not left:  # workers that outlive it hold the other end of the pipe
                break
        code: int | None = None
        spent = time.monotonic() - self._began
        if not left and not self.ended():
            self.kill_group()
            os.waitpid(self.pid, 0)
        else:
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._pipe)
        _, line, value = pickle.loads(data) if data else (None, "", None)
        self.outcome = Outcome(code, line, value, spent)
        return self.outcome

    def members(self) -> list[int]:
        """Processes of its group that run (zombies do not)."""
        return [pid for pid, group, state, _ in _processes() if group == self.pid and state not in "ZX"]

    def left_behind(self, seconds: float) -> int:
        """Processes of its group that are still there so long after its end; they are killed then."""
        deadline = time.monotonic() + patient(seconds)
        while (members := self.members()) and time.monotonic() < deadline:
            time.sleep(0.02)
        _kill(members)
        return len(members)

    def kill_group(self) -> None:
        """With what it has started in groups of their own. Its number must still be its own: before `wait`."""
        assert self.outcome is None
        _kill({*self.members(), *_started_by(self.pid)})


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _started_by(pid: int) -> set[int]:
    """A process, and its children, and theirs."""
    found, parents = {pid}, {child: parent for child, _, _, parent in _processes()}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    return found


def _processes() -> list[tuple[int, int, str, int]]:
    """Process id, group, state and parent of everything that runs."""
    rows = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            rows.append((int(entry), int(fields[2]), fields[0].decode(), int(fields[1])))
    return rows


def until(condition: Callable[[], bool], seconds: float = 60.0, every: float = 0.002) -> bool:
    deadline = time.monotonic() + patient(seconds)
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(every)
    return False
