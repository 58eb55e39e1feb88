"""The comm of the running worker, for `attach` and `Sampler` in a user's own loop."""

from __future__ import annotations

import threading
from typing import Any

import torch

from ..core.torchrun import under_torchrun
from .base import Comm

_local = threading.local()
_groups: dict[Any, Comm] = {}  # of groups that the program made


def set_current(comm: Comm | None) -> None:
    _local.comm = comm


def current_comm(group: Any = None) -> Comm:
    """This worker's comm: that of the launcher, else the torch.distributed group, else a world of size 1.

    group: a group of torch.distributed that the program made, whose processes are the workers.
    """
    if group is not None:
        from .process import ProcessComm

        if group not in _groups:
            _groups[group] = ProcessComm.of_group(group)
        return _groups[group]
    comm = getattr(_local, "comm", None)
    if comm is None:
        if under_torchrun() or (torch.distributed.is_available() and torch.distributed.is_initialized()):
            from .process import ProcessComm

            comm = _local.joined = ProcessComm.from_env()
        else:
            from .virtual import VirtualComm, World

            world = World(1)
            comm = VirtualComm(world, world.workers[0])
        _local.comm = comm
    return comm


def close() -> None:
    """Leave the group of workers that a loop of one's own has joined; the next `attach` or `Sampler` joins anew.

    All workers call it, after their last step. It does nothing where no group was joined or the launcher made it, and
    a program that ends does the same by itself.
    """
    comm, _local.joined = getattr(_local, "joined", None), None
    if comm is not None:
        comm.close()
        set_current(None)


def rank() -> int:
    """The number of this worker, from 0 on; in `eq.spawn`, under torchrun, or 0 where it is alone."""
    return current_comm().rank


def world_size() -> int:
    """The number of workers."""
    return current_comm().size
