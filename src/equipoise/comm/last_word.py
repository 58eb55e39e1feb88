"""Why a worker has ended, in the store, for those who wait for it: they raise the same error."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from ..core import errors
from ..core.errors import WorkerError

_KEY = "equipoise/word"


def leave_word(store: Any, error: WorkerError) -> None:
    """This worker is about to end with an error that is everybody's."""
    with contextlib.suppress(Exception):  # the store may be gone
        store.set(_KEY, json.dumps([type(error).__name__, str(error), error.rank, error.step]))


def last_word(store: Any) -> WorkerError | None:
    """The error with which a worker has ended, if it has left word."""
    try:
        if not store.check([_KEY]):
            return None
        kind, text, rank, step = json.loads(store.get(_KEY))
        error: WorkerError = getattr(errors, kind)(text, rank, step)
    except Exception:  # the store is gone
        return None
    return error
