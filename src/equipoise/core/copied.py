"""Copies of trees of tensors and plain values, in memory that is used again."""

from __future__ import annotations

import copy
from typing import Any

import torch


def copied(value: Any, buffer: Any, device: str | None = None) -> Any:
    """A copy, in the memory of an earlier one (`buffer`) where it fits. device: where it shall be, if not beside it."""
    sources: list[torch.Tensor] = []
    targets: list[torch.Tensor] = []

    def walk(value: Any, buffer: Any) -> Any:
        if isinstance(value, torch.Tensor):
            there = value.device if device is None else torch.device(device)
            same = isinstance(buffer, torch.Tensor) and buffer.shape == value.shape and buffer.dtype == value.dtype
            if not same or buffer.device != there:
                return value.detach().to(there, copy=True)
            sources.append(value.detach())
            targets.append(buffer)
            return buffer
        if isinstance(value, dict):
            before = buffer if isinstance(buffer, dict) else {}
            result = {} if type(value) is dict else copy.copy(value)  # that of a model has versions too
            for key, item in value.items():  # not by `update`: a Counter would add
                result[key] = walk(item, before.get(key))
            return result
        if isinstance(value, list):
            rows = buffer if isinstance(buffer, list) and len(buffer) == len(value) else [None] * len(value)
            return [walk(item, row) for item, row in zip(value, rows, strict=True)]
        return value  # arrays and tuples are never changed in place

    result = walk(value, buffer)
    if targets:
        torch._foreach_copy_(targets, sources)
    return result
