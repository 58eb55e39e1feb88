"""Resume on another number of workers.

Parameters, buffers and optimizer state become the mean over the old workers. The remaining examples of the epoch are
redistributed, each once; later epochs use the partition of the new number. The state of order, batch, period, sync and
wire belongs to workers that no longer exist and starts afresh. Counts of samples, messages and bytes are kept in total.
"""

from __future__ import annotations

from typing import Any

import torch


def mean(values: list[Any]) -> Any:
    """Floating-point tensors averaged, everything else as the first has it, through dicts and lists.

    Over the workers that have it: one that never took a step has no momentum yet.
    """
    values = [v for v in values if v is not None] or [None]
    first = values[0]
    if isinstance(first, torch.Tensor):
        if not first.is_floating_point():
            return first
        return torch.stack([v.double() for v in values]).mean(0).to(first.dtype)
    if isinstance(first, dict):
        keys = dict.fromkeys(key for v in values for key in v)
        return {key: mean([v[key] for v in values if key in v]) for key in keys}
    if isinstance(first, list):
        return [mean(list(items)) for items in zip(*values, strict=True)]
    return first
