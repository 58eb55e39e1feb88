"""The last word of a worker: how it ended, in its heartbeat, for those who wait for it.

`failed (KeyError: 'x')`: an error of its own. `raises ["NonFinite", ...]`: one that is everybody's; whoever waits for
this worker raises it too. `lost`: it gave up waiting for another worker.
"""

from __future__ import annotations

import json

from ..core import errors
from ..core.errors import PeerLost, WorkerError

FAILED, RAISES, LOST = "failed", "raises", "lost"


def word_of(error: BaseException) -> str:
    """The word of a worker that ends with this error."""
    if isinstance(error, PeerLost):
        return LOST
    if isinstance(error, WorkerError):
        return f"{RAISES} {json.dumps([type(error).__name__, str(error), error.rank, error.step])}"
    return f"{FAILED} ({type(error).__name__}: {first_line(error)})"


def error_of(word: str) -> WorkerError | None:
    """The error that a word asks those who wait to raise."""
    kind, _, rest = word.partition(" ")
    if kind != RAISES:
        return None
    name, text, rank, step = json.loads(rest)
    error: WorkerError = getattr(errors, name, WorkerError)(text, rank, step)
    return error


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]
