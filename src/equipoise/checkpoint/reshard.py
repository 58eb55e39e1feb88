"""Resume on another number of workers.

Parameters, buffers and optimizer state become the mean over the old workers; what all workers left of the epoch is
dealt out, each example once; later epochs use the partition of the new number. The state of order, batch, period and sync
belongs to workers that no longer exist and starts afresh. Counts of samples, messages and bytes are kept in total.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..comm.virtual import seed_worker

if TYPE_CHECKING:
    from ..loop.worker import Worker


def load_resharded(worker: Worker, states: list[dict[str, Any]]) -> None:
    worker.model.load_state_dict(mean([s["model"] for s in states]))
    worker.optimizer.load_state_dict(mean([s["optimizer"] for s in states]))
    if worker.scheduler is not None:
        worker.scheduler.load_state_dict(states[0]["scheduler"])
    worker.clock.load_state_dict(states[0]["clock"])
    first = worker.comm.rank == 0
    worker.clock.samples = sum(s["clock"]["samples"] for s in states) if first else 0
    totals = {key: sum(s["ledger"][key] for s in states) if first else 0 for key in ("messages", "bytes")}
    worker.comm.ledger.load_state_dict(totals)
    if worker.comm.virtual:
        worker.comm.now = max(s["now"] for s in states)  # type: ignore[misc]
    worker.position.deal_left_overs([s["position"] for s in states])
    seed_worker(worker.job.seed + 7919 * worker.clock.step, worker.comm.rank)


def mean(values: list[Any]) -> Any:
    """Floating-point tensors averaged, everything else as the first has it, through dicts and lists."""
    first = values[0]
    if isinstance(first, torch.Tensor):
        if not first.is_floating_point():
            return first
        return torch.stack([v.double() for v in values]).mean(0).to(first.dtype)
    if isinstance(first, dict):
        return {key: mean([v[key] for v in values]) for key in first}
    if isinstance(first, list):
        return [mean(list(items)) for items in zip(*values, strict=True)]
    return first
