"""The scheduler of virtual workers."""

from __future__ import annotations

import re
from typing import Any

import torch

import equipoise as eq


def test_each_virtual_worker_computes_with_one_thread_from_its_first_operation_on() -> None:
    """OpenMP counts threads per thread: with the machine's default a first product would round differently."""

    def threads(comm: Any) -> int:
        match = re.search(r"omp_get_max_threads\(\) : (\d+)", torch.__config__.parallel_info())
        assert match is not None
        return int(match[1])

    assert eq.spawn(threads, 3, virtual=True) == [1, 1, 1]
