"""Ctrl-C and SIGTERM request a checkpoint and a clean stop; a second Ctrl-C stops at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from ..core.stop import Stop

EXIT_CODES = {signal.SIGINT: 130, signal.SIGUSR1: 130, signal.SIGTERM: 143, signal.SIGUSR2: 143}


@contextlib.contextmanager
def stop_on_signals(stop: Stop, numbers: tuple[int, ...]) -> Iterator[None]:
    """Turn signals into a request to stop, on which all workers agree at their next control point."""
    if threading.current_thread() is not threading.main_thread():
        yield  # in Python only the main thread can handle signals
        return

    def handler(number: int, frame: Any) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.code = EXIT_CODES[signal.Signals(number)]
        stop.set()

    before = {n: signal.signal(n, handler) for n in numbers}
    try:
        yield
    finally:
        for n, old in before.items():
            signal.signal(n, old)
