"""The global random generators: their state, and a stream for each worker."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from .device import count_of, in_use, module_of

_devices: dict[str, torch.device] = {}  # whose generators are followed, by kind: a process has one of each


def follow_generator(device: torch.device) -> None:
    """From now on the generator of this device is one of the global ones."""
    if device.type != "cpu":
        _devices[device.type] = device


def follow_started() -> None:
    """Follow the generators of all devices that this process has started."""
    for kind in ("cuda", "xpu", "mps"):
        if count_of(kind) and in_use(torch.device(kind)):
            follow_generator(torch.device(kind))


def device_states() -> dict[str, torch.Tensor]:
    """The generators of devices, by kind."""
    return {kind: _module(kind).get_rng_state(*_place(device)) for kind, device in _devices.items()}


def set_device_states(states: dict[str, torch.Tensor]) -> None:
    """Those of kinds that this process does not use are left out."""
    for kind, state in states.items():
        if kind in _devices:
            _module(kind).set_rng_state(state, *_place(_devices[kind]))


def generator_states(device: torch.device) -> list[torch.Tensor]:
    """Of the CPU and of this device, if that is another one."""
    own = [] if device.type == "cpu" else [_module(device.type).get_rng_state(*_place(device))]
    return [torch.get_rng_state(), *own]


def set_generator_states(device: torch.device, states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        _module(device.type).set_rng_state(state, *_place(device))


def _module(kind: str) -> Any:
    return module_of(kind)


def _place(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)  # there is one, and its functions take no argument


def rng_state() -> tuple[Any, ...]:
    """The global generators: torch's, Python's, numpy's, those of devices."""
    return torch.get_rng_state(), random.getstate(), np.random.get_state(), device_states()


def set_rng_state(state: tuple[Any, ...]) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])
    set_device_states(state[3])


def seed_torch(seed: int) -> None:
    """As `torch.manual_seed`, which formats a stack trace for every accelerator that is not there: 3 ms."""
    if _devices or any(count_of(kind) for kind in ("cuda", "xpu", "mps")):
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def seed_worker(seed: int, rank: int) -> None:
    """Give the global generators a stream of this worker's own."""
    numbers = np.random.SeedSequence([seed, rank]).generate_state(3)
    seed_torch(int(numbers[0]))
    random.seed(int(numbers[1]))
    np.random.seed(int(numbers[2]))
