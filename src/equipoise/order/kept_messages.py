"""The sketches of an epoch travel to rank 0, and the orders of the next epochs back."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from ..comm.base import Comm
from .sweeps import Balanced, Kept, no_orders


def balance_on_rank_0(comm: Comm, kept: Kept, balance: Callable[[list[Kept]], Balanced]) -> Balanced:
    """Rank 0 balances the sketches of all workers: the result for this one. Collective."""
    shapes = comm.gather_objects((*kept.rows.shape, kept.rows.dtype == torch.float64))
    width = max(shape[1] for shape in shapes)
    dtype = torch.float64 if any(double for _, _, double in shapes) else torch.float32
    peers = [rank for rank in range(1, comm.size) if shapes[rank][0]]
    balanced = Balanced([no_orders(1)], math.nan, math.nan, math.nan)
    if comm.rank == 0:
        messages = {rank: torch.empty(shapes[rank][0], width + 1, dtype=dtype) for rank in peers}
        comm.exchange({}, messages).wait()
        empty = Kept(torch.zeros(0, width), np.zeros(0, dtype=np.int64))
        others = {
            rank: Kept(message[:, 1:], message[:, 0].numpy().astype(np.int64)) for rank, message in messages.items()
        }
        balanced = balance([kept, *(others.get(rank, empty) for rank in range(1, comm.size))])
    elif comm.rank in peers:
        message = torch.cat([torch.from_numpy(kept.steps).to(kept.rows.dtype)[:, None], kept.rows], 1)
        comm.exchange({0: message.contiguous()}, {}).wait()
    known = [len(balanced.orders[0]), balanced.herding, balanced.visited, balanced.dimension]
    epochs, *told = comm.broadcast(torch.tensor(known, dtype=torch.float64)).tolist()
    order = balanced.orders[0] if comm.rank == 0 else no_orders(int(epochs))
    if comm.rank == 0:
        comm.exchange({rank: torch.from_numpy(balanced.orders[rank].copy()) for rank in peers}, {}).wait()
    elif comm.rank in peers:
        received = torch.empty(int(epochs), len(kept.steps), dtype=torch.int64)
        comm.exchange({}, {0: received}).wait()
        order = received.numpy()
    return Balanced([order], *told)
