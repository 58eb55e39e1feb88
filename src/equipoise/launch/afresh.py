"""Workers that are not forked: a process that has used a GPU cannot hand it on to a copy of itself.

A new Python imports the program again, so a script needs `if __name__ == "__main__":` around what starts the workers,
and the function must be picklable: by pickle, or by cloudpickle where that is installed.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..core.device import count_of, in_use
from ..core.errors import UserError
from ..core.random import set_rng_state


def context_for(device: torch.device | None) -> Any:
    """How processes are started: forked, in a fraction of a second, unless this one has used a device.

    After that autograd has threads, without which a forked process cannot even train on the CPU.
    """
    return multiprocessing.get_context("spawn" if used_here(device) is not None else "fork")


def used_here(device: torch.device | None) -> str | None:
    """The kind of device that this process has used: GPUs, or that of the workers."""
    kinds = [kind for kind in ("cuda", "xpu") if count_of(kind)]
    kinds += [device.type] if device is not None and device.type not in kinds else []
    return next((kind for kind in kinds if in_use(torch.device(kind))), None)


def packed(function: Callable[..., Any], kind: str | None) -> bytes:
    """A function for another process. kind: of the device that was used in this one."""
    why: Exception
    try:
        return pickle.dumps(function)
    except Exception as error:
        why = error
    try:
        import cloudpickle

        data: bytes = cloudpickle.dumps(function)
        return data
    except ImportError:
        raise UserError(
            f"this process has used {kind}, so its workers cannot be forked, and what they shall run cannot be pickled "
            f"({why}): pip install cloudpickle, start the program with torchrun, or use {kind} in the workers alone"
        ) from None


@dataclass
class Afresh:
    """A packed function, run with the random generators of the process that packed it, as in a forked one."""

    data: bytes
    rng: tuple[Any, ...]

    def unpacked(self) -> Callable[..., Any]:
        function: Callable[..., Any] = pickle.loads(self.data)
        set_rng_state(self.rng)
        return function
