"""Writes that fail: one line that names the file, the reason and the way out."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from .errors import UserError

_FULL = 1 << 20  # bytes; a disk with less is taken for full when a write fails


@contextlib.contextmanager
def writing(path: Path, error: type[UserError] = UserError) -> Iterator[None]:
    """A failed write inside becomes `error`."""
    try:
        yield
    except OSError as failure:
        why = failure.strerror or str(failure)
        raise error(f"cannot write {path}: {why}; free space or choose another --out") from failure
    except RuntimeError as failure:  # torch's, whose writer does not say why it could not write
        full = shutil.disk_usage(path.parent).free < _FULL
        why = os.strerror(errno.ENOSPC) if full else str(failure).splitlines()[0]
        raise error(f"cannot write {path}: {why}; free space or choose another --out") from failure


def append(handle: int, data: bytes) -> None:
    """All of the data, at once where the system takes it so: lines of different processes do not interleave."""
    while data:
        data = data[os.write(handle, data) :]


def begin_line(handle: int) -> None:
    """End the half line that a full disk or a kill has left at the end of a file: it would spoil the next one."""
    size = os.fstat(handle).st_size
    if size and os.pread(handle, 1, size - 1) != b"\n":
        append(handle, b"\n")
