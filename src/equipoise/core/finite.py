"""Are numbers finite? One pass over a vector, and a search through the state of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .shards import local


def is_finite(vector: torch.Tensor) -> bool:
    """No NaN, no infinity. The sum decides almost always; of huge numbers it may overflow."""
    return bool(vector.sum().isfinite()) or bool(vector.isfinite().all())


def first_not_finite(tree: Any) -> str | None:
    """Where in nested dicts, lists and tuples the first tensor is that is not finite: its keys, joined by dots."""
    found = [(path, tensor) for path, tensor in tensors_in(tree) if tensor.is_floating_point() and tensor.numel()]
    if not found:
        return None
    # One number for all of them, so that a device is waited for once.
    device = found[0][1].device
    sums = torch.stack([tensor.sum(dtype=torch.float32).to(device) for _, tensor in found])
    if bool(sums.sum().isfinite()):
        return None
    return next((path for path, tensor in found if not is_finite(tensor)), None)


def tensors_in(tree: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor with its place."""
    if isinstance(tree, torch.Tensor):
        yield path, local(tree)
    elif isinstance(tree, (dict, list, tuple)):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from tensors_in(value, f"{path}.{key}" if path else str(key))
