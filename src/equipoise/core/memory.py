"""Sizes are compared with the memory of the machine before anything is allocated."""

from __future__ import annotations

import math
import os

from .errors import UserError


def require_memory(bytes: float, what: str) -> None:
    """Refuse what cannot fit into this machine: it would not fail, it would swap or wait for hours."""
    if bytes > (there := memory()):
        raise UserError(f"{what} would take {bytes / 1e9:.3g} GB of memory and this machine has {there / 1e9:.3g} GB")


def memory() -> float:
    """Of this machine, in bytes; infinite where it is not known."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return math.inf
