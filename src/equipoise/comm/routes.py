"""How a tensor travels: by the backend of its device where all workers can use it, else through host memory.

A group of torch.distributed has one backend per kind of device. Workers agree once on whether tensors of a kind may go
to it directly: gloo sends tensors of the CPU alone, nccl none of the CPU, none between GPUs of two vendors, and none
between two workers on one GPU. What cannot go directly is copied to the host (pinned memory where there is any), takes
the way of a CPU tensor, which is shared memory between workers of one host, and is copied back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from ..core.device import module_of, say_once
from .base import Pending
from .shared_memory import host_id

_HOST_ONLY = ("gloo", "mpi", "ucc", "fake")  # backends that take no tensor of a device, or not in all calls


def backends_for(kind: str) -> str:
    """What `init_process_group` shall make for workers whose tensors are on this kind of device."""
    own = dist.Backend.default_device_backend_map.get(kind)
    if kind == "cpu" or own is None or own in _HOST_ONLY or not dist.is_backend_available(own):
        return "gloo"
    return f"cpu:gloo,{kind}:{own}"


def backends_of(group: dist.ProcessGroup | None) -> dict[str, str]:
    """The backends of a group, by kind of device."""
    config = dist.BackendConfig(dist.Backend(dist.get_backend_config(group)))
    return {str(kind): str(name) for kind, name in config.get_device_backend_map().items()}


def host_group_of(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """A group of the same workers for CPU tensors and objects: itself, if it takes them. All of them call it."""
    if backends_of(group).get("cpu") in ("gloo", "mpi", "ucc"):
        return group
    ranks = None if group is None else dist.get_process_group_ranks(group)
    return dist.new_group(ranks, backend="gloo", use_local_synchronization=ranks is not None)  # type: ignore[no-any-return]


class Routes:
    """Which way tensors of each kind of device go, for one worker."""

    def __init__(self, rank: int, backends: dict[str, str]):
        self.rank, self.backends = rank, backends  # those of the group, by kind of device
        self.direct: frozenset[str] = frozenset()  # kinds whose tensors go straight to the backend of the group
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def agree(self, device: torch.device, gather_objects: Callable[[Any], list[Any]]) -> None:
        """All workers tell where their models live. They call it together."""
        rows = gather_objects((device.type, _vendor(device), self.backends.get(device.type), host_id(), _place(device)))
        kinds = {row[0] for row in rows}
        if kinds == {"cpu"}:
            return
        apart = {(host, place) for *_, host, place in rows}
        backend = self.backends.get(device.type)
        if len(kinds) > 1:
            why = f"workers are on {' and '.join(sorted(kinds))}"
        elif len({row[1] for row in rows}) > 1:
            why = "their devices are of several vendors"
        elif backend is None or backend in _HOST_ONLY or any(row[2] != backend for row in rows):
            why = f"no backend of the group sends tensors of {device.type}"
        elif len(apart) < len(rows):
            why = f"{len(rows)} workers share {len(apart)} device{'s' if len(apart) > 1 else ''}"
        else:
            self.direct = frozenset(kinds)
            say_once(f"{len(rows)} workers on as many {device.type} devices, messages by {backend}", self.rank)
            return
        if len(rows) > 1:
            say_once(f"messages of {device.type} tensors go through host memory: {why}", self.rank)

    def staged(self, tensor: torch.Tensor) -> bool:
        """Does it go through host memory?"""
        kind = tensor.device.type
        return kind != "cpu" and kind not in self.direct

    def scratch(self, like: torch.Tensor) -> torch.Tensor:
        """Host memory of that shape, for one call: the next one uses it again."""
        bytes = like.numel() * like.element_size()
        if len(self._buffer) < bytes:
            self._buffer = host_memory(bytes, torch.uint8)
        return self._buffer[:bytes].view(like.dtype).view(like.shape)

    def through_host(self, call: Callable[[torch.Tensor], Any], tensor: torch.Tensor) -> Any:
        """`call` on a copy on the host, which is copied back; what it returns."""
        host = self.scratch(tensor)
        host.copy_(tensor)
        result = call(host)
        tensor.copy_(host)
        return result


class StagedExchange(Pending):
    """An exchange of copies on the host."""

    def __init__(
        self,
        exchange: Callable[[Mapping[int, torch.Tensor], Mapping[int, torch.Tensor]], Pending],
        outgoing: Mapping[int, torch.Tensor],
        incoming: Mapping[int, torch.Tensor],
    ):
        super().__init__(incoming)
        distinct = {id(tensor): tensor for tensor in outgoing.values()}
        self.sent = {key: on_host_memory(tensor) for key, tensor in distinct.items()}
        received = {peer: host_memory(tensor.numel(), tensor.dtype) for peer, tensor in incoming.items()}
        self.pending: Pending | None = exchange({p: self.sent[id(t)] for p, t in outgoing.items()}, received)

    def arrive(self) -> Mapping[int, torch.Tensor]:
        pending, self.pending = self.pending, None
        if pending is None:
            return {}
        for peer, message in pending.arrive().items():
            self.incoming[peer].copy_(message.view_as(self.incoming[peer]))
        pending.release()
        return dict(self.incoming)

    def release(self) -> None: ...


def on_host_memory(tensor: torch.Tensor) -> torch.Tensor:
    return host_memory(tensor.numel(), tensor.dtype).copy_(tensor.reshape(-1))


_pins: list[bool] = []  # can memory be pinned here? Empty: not asked yet


def host_memory(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory that a device copies to and from, pinned where that is possible."""
    if not _pins:
        with contextlib.suppress(RuntimeError, NotImplementedError):
            _pins.append(torch.empty(8, dtype=torch.uint8, pin_memory=True).is_pinned())
        _pins.append(False)
    return torch.empty(elements, dtype=dtype, pin_memory=_pins[0])


def _vendor(device: torch.device) -> str:
    return "amd" if device.type == "cuda" and torch.version.hip else ""


def _place(device: torch.device) -> str:
    """What tells two devices of one host apart, whatever part of them a process sees."""
    module = module_of(device.type)
    with contextlib.suppress(AttributeError, RuntimeError, AssertionError):
        return str(module.get_device_properties(device).uuid)
    return str(device.index)
