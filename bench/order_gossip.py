"""The herding bound over the world size: coordinated by a gather, among neighbours, or not at all.

    python order_gossip.py --json FILE

Fixed unit vectors in 16 and 128 dimensions, 2,048 in total, one pair per worker and step, 8 epochs of pair balance on
virtual workers: the largest norm of a prefix of the sum over workers. In 16 dimensions 4 workers already have more
pairs in flight than an eighth of the dimension, in 128 dimensions 16 have as many.

A value that is in FILE already is not computed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import arguments

import equipoise as eq
from equipoise.core.context import Context, WorkerInfo
from equipoise.signal import Rows

WORKERS, DIMENSIONS, VECTORS, EPOCHS = (4, 16, 64), (16, 128), 2048, 8
ORDERS: dict[str, Callable[[], eq.order.Order]] = {
    "random": eq.order.Reshuffle,
    "ID-GraB": lambda: eq.order.IDGraB(signal="exact"),
    "Gossip-GraB ring": lambda: eq.order.GossipGraB(signal="exact", pass_on="ring"),
    "Gossip-GraB one-peer": lambda: eq.order.GossipGraB(signal="exact", pass_on="one-peer"),
    "CD-GraB stale": lambda: eq.order.CDGraB(signal="exact", coordinate="stale"),
    "Gossip-GraB relay": lambda: eq.order.GossipGraB(signal="exact"),
    "CD-GraB": lambda: eq.order.CDGraB(signal="exact"),
}


def bound(order: eq.order.Order, blocks: tuple[torch.Tensor, ...]) -> float:
    def loop(comm: Any) -> torch.Tensor:
        mine = blocks[comm.rank]
        own = order.bind(Context(comm, worker=WorkerInfo(comm.rank, comm.size, 0, len(mine))))
        for epoch in range(EPOCHS):
            positions = own.epoch(epoch)
            for start in range(0, len(mine) if own.watches else 0, 2):
                part = positions[start : start + 2]
                own.observe(part, Rows(mine[torch.from_numpy(part)], [1, 1]))
        return mine[torch.from_numpy(own.epoch(EPOCHS))]

    total = torch.stack(eq.spawn(loop, len(blocks), virtual=True)).sum(0)
    return float((total - total.mean(0)).cumsum(0).norm(dim=1).max())


def unit_vectors(dimension: int) -> torch.Tensor:
    drawn = torch.randn(VECTORS, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return drawn / drawn.norm(dim=1, keepdim=True)


def main() -> None:
    args = arguments(__doc__ or "")
    torch.set_num_threads(1)
    path = Path(args.json or "order_gossip.json")
    table: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    for d in DIMENSIONS:
        for name, order in ORDERS.items():
            for workers in WORKERS:
                key = f"{name}, {d} dimensions, {workers} workers"
                if key not in table:
                    table[key] = round(bound(order(), unit_vectors(d).chunk(workers)), 3)
                    path.write_text(json.dumps(table, indent=1) + "\n")
                print(key, table[key], flush=True)


if __name__ == "__main__":
    main()
