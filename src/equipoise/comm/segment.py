"""A piece of anonymous shared memory, which belongs to the process that made it and is freed when that ends."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

import torch


class Segment:
    """Shared memory of this process, or of another one and mapped here."""

    def __init__(self, handle: int, bytes: int):
        self.handle = handle
        self.memory = mmap.mmap(handle, bytes)
        self.bytes = bytes
        self.acknowledgements: list[Callable[[], None]] = []  # waits for readers of what was written here
        self.in_flight = False  # does it hold a message of an exchange that has not ended here?

    @classmethod
    def make(cls, bytes: int) -> Segment:
        handle = os.memfd_create("equipoise")
        os.ftruncate(handle, bytes)
        return cls(handle, bytes)

    @classmethod
    def of(cls, pid: int, handle: int, bytes: int) -> Segment:
        return cls(os.open(f"/proc/{pid}/fd/{handle}", os.O_RDWR), bytes)

    def __del__(self) -> None:
        os.close(self.handle)

    def tensor(self, like: torch.Tensor, start: int = 0) -> torch.Tensor:
        """A flat tensor as large as `like`, from byte `start` on."""
        return self.view(like.numel(), like.dtype, start)

    def view(self, count: int, dtype: torch.dtype, start: int = 0) -> torch.Tensor:
        """`count` elements from byte `start` on."""
        if count == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self.memory, dtype=dtype, count=count, offset=start)

    def reclaim(self) -> None:
        """Wait until all receivers have read what was written here."""
        for wait in self.acknowledgements:
            wait()
        self.acknowledgements = []
