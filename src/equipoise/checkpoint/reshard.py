"""Resume on another number of workers.

Parameters, buffers and optimizer state become the mean over the old workers; what all workers left of the epoch is
dealt out, each example once; later epochs use the partition of the new number. The state of order, batch, period and sync
belongs to workers that no longer exist and starts afresh. Counts of samples, messages and bytes are kept in total.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..core.random import seed_worker
from .store import load_trained

if TYPE_CHECKING:
    from ..loop.worker import Worker


def load_resharded(worker: Worker, states: list[dict[str, Any]]) -> None:
    merged = {"model": mean([s["model"] for s in states]), "optimizer": mean([s["optimizer"] for s in states])}
    load_trained(worker, {**merged, "scheduler": states[0]["scheduler"]}, states[0]["classes"])
    worker.clock.load_state_dict(states[0]["clock"])
    first = worker.comm.rank == 0
    worker.clock.samples = sum(s["clock"]["samples"] for s in states) if first else 0
    totals = {key: sum(s["ledger"][key] for s in states) if first else 0 for key in ("messages", "bytes")}
    now = max(s["now"] for s in states)
    last = next(s["ledger"] for s in states if s["now"] == now)  # its seconds are those of the run so far
    worker.comm.ledger.load_state_dict(last | totals)
    if worker.comm.virtual:
        worker.comm.now = now  # type: ignore[misc]
    worker.position.deal_left_overs([s["position"] for s in states])
    seed_worker(worker.job.seed + 7919 * worker.clock.step, worker.comm.rank)


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
