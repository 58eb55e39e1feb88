"""A worker that was left out of a round goes on from the others' model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..comm.transfer import transfer
from ..core.shards import local_tree, sharded_optimizer_state

if TYPE_CHECKING:
    from .step import Step


@torch.no_grad()
def take_over(step: Step, left_out: list[int], *, one_model: bool, wire: bool) -> None:
    """The workers `left_out` receive the mean model of the others, and the rest from the first of these.

    A worker whose model is the mean of the others' has no influence on a mean over all: it counts for nothing, and in
    gossip the mean of those who are well is kept. All workers call it. What belongs together across workers begins
    anew on all of them.

    one_model: the others hold the same model, which is copied to the bit. wire: what channels keep was lost too.
    """
    comm, flat, sync = step.comm, step.flat, step.sync
    replaced = comm.rank in left_out
    present = [rank for rank in range(comm.size) if rank not in left_out]
    x = flat.gather()
    if one_model:
        common = comm.broadcast(x.clone(), present[0])
    else:
        shares = sync.mean_shares() or [1.0] * comm.size
        weight = 0.0 if replaced else shares[comm.rank] / sum(shares[rank] for rank in present)
        common = comm.sum(torch.zeros_like(x) if replaced else x * weight)
    received = transfer(comm, _state(step) if comm.rank == present[0] else None, present[0], left_out, x.device)
    if replaced:
        x.copy_(common)
        _load(step, received)
    sync.restart(x, common, replaced=replaced)
    flat.scatter()
    if wire:
        step.wire.forget(common)
    step.guard.keep_buffers()


def _state(step: Step) -> dict[str, Any]:
    """What a worker needs besides the model."""
    return {
        "optimizer": local_tree(step.optimizer.state_dict()["state"]),
        "sync": step.sync_state(),
        "buffers": step.buffers.gather(),
    }


def _load(step: Step, state: dict[str, Any]) -> None:
    groups = step.optimizer.state_dict()["param_groups"]  # its own: a schedule may have changed them
    loaded = {"state": state["optimizer"], "param_groups": groups}
    step.optimizer.load_state_dict(sharded_optimizer_state(loaded, step.optimizer))
    for name, value in state["sync"].items():
        step.sync.put(name, value)
    step.buffers.scatter(state["buffers"])
