"""The scheduler of virtual workers: one thread each, and nothing left behind."""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from pathlib import Path

import pytest
import torch

import equipoise as eq
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


@pytest.mark.skipif(sys.platform != "linux", reason="reads the libraries of the process")
def test_each_virtual_worker_computes_with_one_thread_from_its_first_operation_on() -> None:
    """OpenMP counts threads per thread: with the machine's default a first product would round differently."""
    libraries = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    # scikit-learn may have brought another one, which torch does not use.
    openmp = [ctypes.CDLL(path) for path in libraries if re.search(r"/torch.*/lib[gi]?omp", path)]
    if not openmp:
        pytest.skip("this torch is built without a bundled OpenMP")

    def threads(comm: Comm) -> list[int]:
        return [library.omp_get_max_threads() for library in openmp]

    assert eq.spawn(threads, 3, virtual=True) == [[1] * len(openmp)] * 3
