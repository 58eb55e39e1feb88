"""What the tests of workers share."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from equipoise.launch.start import spawn

both = pytest.mark.parametrize("virtual", [True, False], ids=["virtual", "processes"])


def run(function: Any, workers: int, virtual: bool, **how: Any) -> list[Any]:
    how.setdefault("timeout", 30.0)
    return spawn(function, workers, virtual=virtual, **how)


def values(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers whose sum depends on the order in which it is taken: magnitudes from 1e-3 to 1e3."""
    generator = torch.Generator().manual_seed(100 + rank)
    exponent = torch.randint(-3, 4, (count,), generator=generator)
    return (torch.randn(count, generator=generator, dtype=torch.float64) * 10.0**exponent).to(dtype)


def in_rank_order(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total = total + part
    return total
