"""The state of one worker to others: nested dicts and lists of tensors and plain values, in one message to each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .base import Comm


class _Place(NamedTuple):
    """Stands for a tensor that travels in the message."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    host: bool  # is it one of the CPU wherever the model is, as the counters of an optimizer are?


@torch.no_grad()
def transfer(comm: Comm, tree: Any, source: int, targets: list[int], device: torch.device) -> Any:
    """The source's `tree` on the targets, None on all other workers. Every worker calls it; tensors are counted."""
    sends, receives = comm.rank == source, comm.rank in targets
    outline = comm.gather_objects(_outline(tree) if sends else None)[source]
    if sends:
        message = torch.cat([_bytes_of(t).to(device) for t in _tensors(tree)] or [torch.empty(0, dtype=torch.uint8)])
        if len(message):
            comm.exchange(dict.fromkeys(targets, message), {}).wait()
    if not receives:
        return None
    lengths = [torch.Size(place.shape).numel() * place.dtype.itemsize for place in _tensors(outline)]
    message = torch.empty(sum(lengths), dtype=torch.uint8, device=device)
    if len(message):
        comm.exchange({}, {source: message}).wait()
    return _filled(outline, iter(torch.split(message, lengths)))


def _outline(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return _Place(tuple(tree.shape), tree.dtype, tree.device.type == "cpu")
    if isinstance(tree, dict):
        return {key: _outline(value) for key, value in tree.items()}
    return [_outline(value) for value in tree] if isinstance(tree, (list, tuple)) else tree


def _tensors(tree: Any) -> Iterator[Any]:
    """The tensors, or what stands for them, in the order of the message."""
    if isinstance(tree, (torch.Tensor, _Place)):
        yield tree
    elif isinstance(tree, (dict, list, tuple)):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(value)


def _filled(outline: Any, parts: Iterator[torch.Tensor]) -> Any:
    if isinstance(outline, _Place):
        part = next(parts).clone()  # a copy begins at an aligned address
        return (part.cpu() if outline.host else part).view(outline.dtype).view(outline.shape)
    if isinstance(outline, dict):
        return {key: _filled(value, parts) for key, value in outline.items()}
    return [_filled(value, parts) for value in outline] if isinstance(outline, list) else outline


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)
