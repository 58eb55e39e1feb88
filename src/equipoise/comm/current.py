"""The comm of the running worker, for `attach` and `Sampler` in a user's own loop."""

from __future__ import annotations

import threading

import torch

from ..core.torchrun import under_torchrun
from .base import Comm

_local = threading.local()


def set_current(comm: Comm | None) -> None:
    _local.comm = comm


def current_comm() -> Comm:
    """This worker's comm: that of the launcher, else the torch.distributed group, else a world of size 1."""
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
