"""A backend of torch.distributed as nccl is one: for tensors of the test device, and for no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from . import device

NAME = "strictccl"


class _Work(dist._Work):
    """Waits for copies on the host, and copies them back."""

    def __init__(self, work: Any, back: Callable[[], Any] = lambda: None):
        super().__init__()
        self.work, self.back = work, back

    def wait(self, timeout: Any = None) -> bool:
        self.work.wait()
        self.back()
        return True


class StrictCCL(dist.ProcessGroup):
    """What is called of it goes to gloo, by copies. Tensors of the CPU are refused."""

    calls = 0

    def __init__(self, store: Any, rank: int, size: int, timeout: Any):
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def _down(self, tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.device.type == device.NAME, f"{NAME} cannot send a tensor of {tensor.device}"
        StrictCCL.calls += 1
        return tensor.cpu()

    def getBackendName(self) -> str:
        return NAME

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> Any:
        host = self._down(tensors[0])
        return _Work(self.gloo.allreduce([host]), lambda: tensors[0].copy_(host))

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Any:
        host = self._down(tensors[0])
        return _Work(self.gloo.broadcast([host], options), lambda: tensors[0].copy_(host))

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any = None) -> Any:
        hosts = [self._down(out) for out in outputs[0]]

        def back() -> None:
            for out, host in zip(outputs[0], hosts, strict=True):
                out.copy_(host)

        return _Work(self.gloo.allgather([hosts], [self._down(inputs[0])]), back)

    def alltoall_base(self, out: torch.Tensor, given: torch.Tensor, into: Any, out_of: Any, options: Any = None) -> Any:
        host = self._down(out)
        return _Work(self.gloo.alltoall_base(host, self._down(given), into, out_of), lambda: out.copy_(host))

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        self.kept = [self._down(tensors[0]), *getattr(self, "kept", [])[:64]]  # until they are sent
        return _Work(self.gloo.send(self.kept[:1], peer, tag))

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        host = self._down(tensors[0])
        return _Work(self.gloo.recv([host], peer, tag), lambda: tensors[0].copy_(host))


def register() -> None:
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, StrictCCL, devices=[device.NAME])
