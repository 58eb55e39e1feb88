"""Which workers write to the same folder. Hosts need not share one: each then keeps the files of its own workers.

A checkpoint in several folders is complete when each of them has its part: the manifest of a part lists its own files,
and names the host of every worker. All parts of one attempt carry the same token.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import NamedTuple

from ..comm.base import Comm


class Places(NamedTuple):
    """By rank: its host, and the first rank that writes to the same folder."""

    hosts: tuple[str, ...]
    first: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """Do all workers share one folder?"""
        return not any(self.first)

    def leads(self, rank: int) -> bool:
        """Is it the first of its folder, which writes there what all have in common?"""
        return self.first[rank] == rank

    def sharing(self, rank: int) -> tuple[int, ...]:
        """The ranks that write to the same folder, this one included."""
        return tuple(other for other, first in enumerate(self.first) if first == self.first[rank])


def find_places(comm: Comm, folder: Path | None) -> Places:
    """Collective. Workers in one process, and workers without a folder, have nothing to find out."""
    together = Places(("",) * comm.size, (0,) * comm.size)
    if folder is None or comm.virtual or comm.size == 1:
        return together
    with contextlib.suppress(OSError):  # whoever writes there first says what is wrong
        folder.mkdir(parents=True, exist_ok=True)
    told = comm.gather_objects((socket.gethostname(), _identity(folder)))
    hosts, identities = tuple(host for host, _ in told), [identity for _, identity in told]
    if len(set(identities)) == 1:
        return together._replace(hosts=hosts)
    return Places(hosts, _visible(comm, folder, identities))


def _identity(folder: Path) -> tuple[str, int, int]:
    """Equal for two processes of one kernel with the same folder."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        kernel = socket.gethostname()
    try:
        found = folder.stat()
    except OSError:
        return kernel, 0, 0
    return kernel, found.st_dev, found.st_ino


def _visible(comm: Comm, folder: Path, identities: list[tuple[str, int, int]]) -> tuple[int, ...]:
    """A folder that several hosts mount has another identity on each: a file tells who sees it."""
    token = comm.gather_objects(f"{os.getpid():x}-{time.time_ns():x}")[0]
    leads = identities.index(identities[comm.rank]) == comm.rank
    own = folder / f".place-{token}-{comm.rank}"
    if leads:
        with contextlib.suppress(OSError):
            own.touch()
    comm.gather_objects(None)  # all files are there
    # By name, not by a listing: a network file system may remember an old one.
    seen = next((r for r in range(comm.size) if (folder / f".place-{token}-{r}").exists()), comm.rank)
    first = tuple(comm.gather_objects(seen))
    if leads:
        with contextlib.suppress(OSError):
            own.unlink()
    return first
