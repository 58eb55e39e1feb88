"""The connections of this process: those of gloo can be cut, and those of a store wait no longer than they should.

gloo has no call to interrupt a thread that waits (its `abort` does nothing), and a wait for a worker that hangs would
last until its timeout. A call of torch's TCPStore ends only when the kernel gives up a connection, a quarter of an hour
after a link was cut, whatever its timeout says.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Any

_OPEN = Path("/proc/self/fd")
_ANSWER = 5.0, 60.0  # seconds: a store that is alive answers in less than the first, or than the second under any load
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


def limit_waits(store: Any, seconds: float) -> None:
    """Calls of this store, and of its clones so far, fail where its host cannot be reached for so long, or where it
    gives no answer.
    """
    store = _of_tcp(store)
    if store is None or not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    least, most = _ANSWER
    answer = min(max(seconds, least), most)
    for handle, _ in open_sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(handle)) as connection:
            over_ip = connection.family in (socket.AF_INET, socket.AF_INET6)
            if over_ip and connection.getpeername()[1] == store.port:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(1000 * seconds)))
                whole, part = divmod(answer, 1.0)
                connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(whole), int(1e6 * part))
                )


def address_of(store: Any) -> str:
    """HOST:PORT of a store, in words where it has none."""
    store = _of_tcp(store)
    return f"{store.host}:{store.port}" if store is not None else "the launcher's folder"


def _of_tcp(store: Any) -> Any:
    """The TCPStore that a store of prefixes is on; None if it is on another kind."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store if hasattr(store, "port") and hasattr(store, "host") else None
