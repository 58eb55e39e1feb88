"""The connections that gloo has opened, so that a thread which waits on one of them can be interrupted.

gloo has no call for that (its `abort` does nothing), and a wait for a worker that hangs would last until its timeout.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

_OPEN = Path("/proc/self/fd")
Connections = set[tuple[int, str]]  # file descriptors, and what they stand for: numbers are used again


def possible() -> bool:
    return _OPEN.is_dir()


def open_sockets() -> Connections:
    """Of this process."""
    found: Connections = set()
    for name in os.listdir(_OPEN) if possible() else ():
        with contextlib.suppress(OSError):  # closed meanwhile
            target = os.readlink(_OPEN / name)
            if target.startswith("socket:"):
                found.add((int(name), target))
    return found


def cut(connections: Connections) -> None:
    """End these connections, for both sides; whoever waits on one of them gets an error."""
    for handle, _ in connections & open_sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(handle)) as connection:
            # gloo ends the process if the socket on which it listens is shut down.
            if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                connection.shutdown(socket.SHUT_RDWR)
