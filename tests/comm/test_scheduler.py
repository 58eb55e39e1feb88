"""The scheduler of virtual workers leaves nothing behind."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

from equipoise.comm.base import Comm
from equipoise.comm.virtual import World


def test_threads_are_gone_when_a_run_ends() -> None:
    """A process forked while a thread still releases its memory could wait for a lock for ever."""

    def work(comm: Comm) -> int:
        torch.randn(64, 64) @ torch.randn(64, 64)
        return threading.get_native_id()

    for _ in range(20):
        ids = World(16).run(work)
        assert not [i for i in ids if Path(f"/proc/self/task/{i}").exists()]
