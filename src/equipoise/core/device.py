"""Where models live: devices by name, what each kind can do, and numbers that the host reads from them."""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any

import torch

from .errors import UserError, did_you_mean

NAMES = ("auto", "cpu", "cuda", "mps", "xpu")
CPU = torch.device("cpu")


def module_of(kind: str) -> ModuleType | Any:
    """torch's module for a kind of device, such as `torch.cuda`; None where it has none."""
    return getattr(torch, kind, None)


def count_of(kind: str) -> int:
    """How many devices of this kind this process can use. CUDA is not started by the question: a fork may follow."""
    module = module_of(kind)
    if kind == "cpu":
        return 1
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    return int(module.device_count()) if module is not None and hasattr(module, "device_count") else 0


def chosen_device(name: torch.device | str) -> torch.device:
    """The device of this name. "auto" is an accelerator where there is one, else the CPU."""
    if name == "auto":
        return torch.device(next((kind for kind in ("cuda", "xpu", "mps") if count_of(kind)), "cpu"))
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise UserError(f"device = {str(name)!r}: {did_you_mean(str(name), list(NAMES))}") from None
    there = count_of(device.type)
    if not there:
        raise UserError(f"device = {str(name)!r}: this torch finds no such device here; pass auto or cpu")
    if device.index is not None and device.index >= there:
        raise UserError(f"device = {str(name)!r}: there {'is' if there == 1 else 'are'} {there}, counted from 0")
    return device


def local_rank(rank: int) -> int:
    """The number of this process among those of its host, as its launcher tells; else its rank."""
    return int(os.environ.get("LOCAL_RANK", rank))


def placed(device: torch.device, rank: int) -> torch.device:
    """The device of one process: those of a host take them in turn, several share one where they are fewer.

    It becomes the current one of the process.
    """
    if device.type == "cpu":
        return device
    index = local_rank(rank) % count_of(device.type) if device.index is None else device.index
    module = module_of(device.type)
    if hasattr(module, "set_device"):
        module.set_device(index)
    return torch.device(device.type, index)


def assumed(device: torch.device | None, rank: int) -> torch.device:
    """Where the model of a process will be: as given, else on a GPU that it can use."""
    if device is not None:
        return placed(device, rank)
    gpu = torch.device("cuda")
    if not count_of("cuda") or torch.cuda._is_in_bad_fork():
        return CPU
    return gpu if in_use(gpu) else placed(gpu, rank)


def in_use(device: torch.device) -> bool:
    """Has this process started the device, so that a forked one could not use it?"""
    module = module_of(device.type)
    if device.type == "cpu" or module is None:
        return False
    return bool(module.is_initialized()) if hasattr(module, "is_initialized") else True


@functools.cache
def _computes_in(dtype: torch.dtype, kind: str) -> bool:
    try:
        return bool((torch.ones(1, dtype=dtype, device=kind) + 1).sum().item() == 2)
    except (RuntimeError, TypeError):
        return False


def widest(device: torch.device) -> torch.dtype:
    """float64 where the device computes in it (MPS does not), else float32."""
    if device.type == "cpu" or _computes_in(torch.float64, device.type):
        return torch.float64
    return torch.float32


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """In float64, where numbers of any device are compared and added."""
    return tensor.detach().cpu().double()


def numbers(*scalars: torch.Tensor) -> list[float]:
    """The values of scalars. A device is waited for once."""
    if len(scalars) == 1 or all(scalar.device.type == "cpu" for scalar in scalars):
        return [scalar.item() for scalar in scalars]
    dtype = widest(scalars[0].device) if any(s.dtype == torch.float64 for s in scalars) else torch.float32
    return [float(value) for value in torch.stack([scalar.detach().to(dtype) for scalar in scalars]).tolist()]


def waited_for(device: torch.device) -> None:
    """Return when the device has done what it was asked to."""
    module = module_of(device.type)
    if device.type != "cpu" and hasattr(module, "synchronize"):
        module.synchronize()


def on_device(value: Any, device: torch.device) -> Any:
    """Nested values with their tensors on a device; from there to the CPU too."""
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device)
    if isinstance(value, dict):
        return {key: on_device(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(on_device(item, device) for item in value)
    return value


_said: set[str] = set()


def say_once(text: str, rank: int) -> None:
    """A note on stderr, from worker 0 and once a process."""
    if rank == 0 and text not in _said:
        _said.add(text)
        print(f"equipoise: note: {text}", file=sys.stderr, flush=True)
