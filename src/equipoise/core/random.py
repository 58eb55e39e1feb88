"""The global random generators: their state, and a stream for each worker."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def rng_state() -> tuple[Any, ...]:
    """The global generators: torch's, Python's, numpy's."""
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def set_rng_state(state: tuple[Any, ...]) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])


def seed_torch(seed: int) -> None:
    """As `torch.manual_seed`, which formats a stack trace for every accelerator that is not there: 3 ms."""
    accelerators = torch.cuda.is_available() or torch.xpu.is_available() or torch.backends.mps.is_available()
    if accelerators:
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def seed_worker(seed: int, rank: int) -> None:
    """Give the global generators a stream of this worker's own."""
    numbers = np.random.SeedSequence([seed, rank]).generate_state(3)
    seed_torch(int(numbers[0]))
    random.seed(int(numbers[1]))
    np.random.seed(int(numbers[2]))
