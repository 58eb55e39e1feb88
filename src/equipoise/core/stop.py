"""A request to stop, made by a signal handler."""

from __future__ import annotations

import threading


class Stop(threading.Event):
    """Set by a signal handler; workers agree on it at their next control point. `code` is the exit code it asks for."""

    code = 130

    def __reduce__(self) -> tuple[type[Stop], tuple[()]]:
        """Another process has one of its own."""
        return Stop, ()
