"""Errors that nobody catches in a program under torchrun: they end this process, and the others learn why."""

from __future__ import annotations

import sys
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..core.errors import PeerLost
from ..core.torchrun import rank

if TYPE_CHECKING:
    from .process import ProcessComm

_installed: Any = None
_comms: weakref.WeakSet[ProcessComm] = weakref.WeakSet()  # of this process


def report_unhandled(comm: ProcessComm) -> None:
    """Tell the workers of this comm of such an error.

    Where it is the loss of another worker, one line says all; the calls that led to it are no matter of this program.
    """
    global _installed
    if sys.excepthook is not _installed:  # torch puts its own one there whenever a group is joined
        before = sys.excepthook

        def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            for known in _comms:
                known.leave_word(error)
            if isinstance(error, PeerLost):
                print(f"equipoise: process {rank()}: {error}", file=sys.stderr, flush=True)
            else:
                before(kind, error, trace)

        sys.excepthook = _installed = report
    _comms.add(comm)
