"""The comm of the running worker, for `attach` and `Sampler` in a user's own loop."""

from __future__ import annotations

import os
import threading

import torch

from ..comm.base import Comm

_local = threading.local()


def set_current(comm: Comm | None) -> None:
    _local.comm = comm


def under_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def current_comm() -> Comm:
    """This worker's comm: what the launcher made, the torch.distributed group at hand, or a world of one."""
    comm = getattr(_local, "comm", None)
    if comm is None:
        if under_torchrun() or (torch.distributed.is_available() and torch.distributed.is_initialized()):
            from ..comm.process import ProcessComm

            comm = ProcessComm.from_env()
        else:
            from ..comm.virtual import VirtualComm, World

            world = World(1)
            comm = VirtualComm(world, world.workers[0])
        _local.comm = comm
    return comm
