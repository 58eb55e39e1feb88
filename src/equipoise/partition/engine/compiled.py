"""`compiled`: a function turned into machine code when it is first called, and kept on disk for the next run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Without the interpreter's lock, so that classes run in parallel threads. No reordering of float sums."""
    try:
        return njit(nogil=True, cache=True)(function)  # type: ignore[return-value]
    except RuntimeError:  # nowhere to keep it: the package and the home folder are both read-only
        return njit(nogil=True)(function)  # type: ignore[return-value]
